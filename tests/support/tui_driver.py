"""Driving the terminal interface: an app that is drawn, and a screen that takes keys."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.pilot import Pilot
    from textual.screen import Screen

    from runbook.tui.app import RunbookApp

SIZE = (120, 40)


@asynccontextmanager
async def driven(app: RunbookApp, size: tuple[int, int] = SIZE) -> AsyncIterator[Pilot[int]]:
    """The app, its board drawn and listening."""
    async with app.run_test(size=size) as pilot:
        await wait_until(lambda: app.board.ready and app.focused is not None, "the board")
        await pilot.pause()
        yield pilot


async def in_front(app: RunbookApp, kind: type[Screen[Any]]) -> None:
    """Wait until a screen of this kind takes keys."""
    await wait_until(
        lambda: isinstance(app.screen, kind) and app.screen.focused is not None,
        f"{kind.__name__} in front",
    )
