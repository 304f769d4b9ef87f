"""Driving the terminal interface: an app that is drawn, and a screen that takes keys.

Textual's own pilot goes on once the process has been idle for 20 ms, which on a busy machine says
nothing: a key may still be on its way up from the widget to the app. Ours goes on once every
message that the key led to was handled and the screen is drawn.
"""

from __future__ import annotations

import asyncio
import time
import unicodedata
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from textual.command import Command, CommandList
from textual.events import Key
from textual.keys import REPLACED_KEYS, _character_to_key, _get_unicode_name_from_key
from textual.pilot import Pilot

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from textual.message_pump import MessagePump
    from textual.screen import Screen

    from runbook.tui.app import RunbookApp

SIZE = (120, 40)
LIMIT_S = 60.0


@asynccontextmanager
async def driven(app: RunbookApp, size: tuple[int, int] = SIZE) -> AsyncIterator[Pilot[int]]:
    """The app, its board drawn and listening."""
    async with app.run_test(size=size):
        await wait_until(lambda: app.board.ready and app.focused is not None, "the board")
        await settled(app)
        yield Steady(app)


async def in_front(app: RunbookApp, kind: type[Screen[Any]]) -> None:
    """Wait until a screen of this kind is drawn and takes keys."""
    await wait_until(
        lambda: isinstance(app.screen, kind) and app.screen.focused is not None,
        f"{kind.__name__} in front",
    )
    await settled(app)


async def offers(app: RunbookApp, text: str) -> None:
    """Wait until the palette would take what has this text; what fewer letters found may stand
    there still."""

    def first() -> bool:
        found = app.screen.query_one(CommandList)
        at = found.highlighted
        chosen = found.get_option_at_index(at) if at is not None and found.option_count else None
        return isinstance(chosen, Command) and text in str(chosen.hit.text)

    await wait_until(first, f"{text!r} first in the palette")


class Steady(Pilot[int]):
    """A pilot that does not go by the clock."""

    async def press(self, *keys: str) -> None:
        for key in keys:
            self.app.post_message(key_event(key))
            await settled(self.app)

    async def pause(self, delay: float | None = None) -> None:
        assert delay is None, "wait for something"
        await settled(self.app)

    async def resize_terminal(self, width: int, height: int) -> None:
        await super().resize_terminal(width, height)
        await wait_until(lambda: self.app.screen.size == (width, height), "the other size")
        await settled(self.app)


def key_event(key: str) -> Key:
    """As a terminal's driver makes it."""
    name = _character_to_key(key) if len(key) == 1 and not key.isalnum() else key
    try:
        letter = unicodedata.lookup(_get_unicode_name_from_key(REPLACED_KEYS.get(name, name)))
    except KeyError:
        letter = key if len(key) == 1 else None
    return Key(name, letter)


async def settled(app: Any) -> None:
    """Until nobody has a message, twice in a row, and nothing waits to be drawn."""
    deadline = time.monotonic() + LIMIT_S
    quiet = 0
    while quiet < 2 and app.is_running and not app._exit:
        await _all_answer(app, deadline)
        busy = [pump for pump in _pumps(app) if pump.message_queue_size or pump._next_callbacks]
        quiet = 0 if busy or _draws(app) else quiet + 1


async def _all_answer(app: Any, deadline: float) -> None:
    """Each has handled what it had when this began."""
    answered: set[MessagePump] = set()

    def answer(pump: MessagePump) -> None:
        answered.add(pump)

    asked = [pump for pump in _pumps(app) if pump.call_later(answer, pump)]
    while any(pump not in answered and not _ends(pump) for pump in asked):
        if app._exit or app._exception is not None:
            return
        assert time.monotonic() < deadline, f"{set(asked) - answered} have not answered"
        await asyncio.sleep(0)


def _pumps(app: Any) -> list[MessagePump]:
    return [app, *app._registry]


def _ends(pump: MessagePump) -> bool:
    return pump._closing or pump._closed


def _draws(app: Any) -> bool:
    """Whether the screen in front had something to draw; then it is drawn."""
    screen = app.screen
    waiting = (
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )
    if waiting and not app._batch_count:
        screen._on_timer_update()
    return bool(waiting)
