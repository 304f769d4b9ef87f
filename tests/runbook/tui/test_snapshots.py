"""How it looks, at the two sizes that matter, on light ground, and the page of keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runbook.tui.app import RunbookApp
from runbook.tui.screens.pages import HelpScreen
from tests.support.tui_driver import in_front
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from textual.pilot import Pilot

MakeApp = Callable[..., RunbookApp]
Compare = Callable[..., bool]


async def drawn(pilot: Pilot[Any]) -> None:
    """Only what is complete is compared."""
    app = pilot.app
    assert isinstance(app, RunbookApp)
    await wait_until(lambda: app.board.ready and app.board.log_view.file.line_count == 620, "it")
    await pilot.pause()


async def with_help(pilot: Pilot[Any]) -> None:
    """The page of keys over the board."""
    await drawn(pilot)
    await pilot.press("question_mark")
    assert isinstance(pilot.app, RunbookApp)
    await in_front(pilot.app, HelpScreen)
    await pilot.pause()


def test_board_80x24(snap_compare: Compare, make_app: MakeApp) -> None:
    assert snap_compare(make_app(), terminal_size=(80, 24), run_before=drawn)


def test_board_120x40(snap_compare: Compare, make_app: MakeApp) -> None:
    assert snap_compare(make_app(), terminal_size=(120, 40), run_before=drawn)


def test_board_light(snap_compare: Compare, make_app: MakeApp) -> None:
    app = make_app(environment={"LANG": "C.UTF-8", "TEXTUAL_THEME": "runbook-light"})
    assert snap_compare(app, terminal_size=(120, 40), run_before=drawn)


def test_help(snap_compare: Compare, make_app: MakeApp) -> None:
    assert snap_compare(make_app(), terminal_size=(100, 40), run_before=with_help)
