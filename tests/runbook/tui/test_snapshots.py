"""How it looks: every place at the two sizes that matter, on dark and on light ground."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from runbook.tui.app import RunbookApp
from runbook.tui.places import PLACES
from runbook.tui.screens.pages import HelpScreen
from tests.support.tui_driver import in_front, settled
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from textual.pilot import Pilot

MakeApp = Callable[..., RunbookApp]
Compare = Callable[..., bool]

LIGHT = {"LANG": "C.UTF-8", "TEXTUAL_THEME": "runbook-light"}
SMALL, LARGE = (80, 24), (140, 45)
TELLS = {
    "board": "620 lines", "task": "needed by", "log": "620 lines", "hosts": "H200",
    "training": "accuracy by slot", "data": "p-17", "attention": "what can be done",
    "timeline": "Event 5", "handoff": "no markup here",
}  # fmt: skip
"""What stands in a place once all of it is there."""
ASKED = {"task": "_plan", "training": "_kept"}
"""What a place asks for as well, off the screen's thread; where it is kept, after its key."""


def text_of(app: RunbookApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def drawn(place: str, pilot: Pilot[Any]) -> None:
    """Only what is complete is compared."""
    app = pilot.app
    assert isinstance(app, RunbookApp)
    await wait_until(lambda: app.board.ready and app.board.log_view.file.line_count == 620, "it")
    if place != "board":
        await pilot.press(str([p.id for p in PLACES].index(place) + 1))
    await wait_until(lambda: TELLS[place] in text_of(app), f"all of {place}")
    if place in ASKED:
        await wait_until(lambda: bool(getattr(app.place, ASKED[place])[1]), "what a host answers")
    await wait_until(lambda: not app.bridge.busy, "every answer")
    await settled(app)


async def with_help(pilot: Pilot[Any]) -> None:
    """The page of keys over the board."""
    await drawn("board", pilot)
    await pilot.press("question_mark")
    assert isinstance(pilot.app, RunbookApp)
    await in_front(pilot.app, HelpScreen)


@pytest.mark.parametrize("place", [place.id for place in PLACES])
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("ground", [{}, LIGHT], ids=["dark", "light"])
def test_place(
    snap_compare: Compare,
    make_app: MakeApp,
    place: str,
    size: tuple[int, int],
    ground: dict[str, str],
) -> None:
    app = make_app(environment=ground) if ground else make_app()
    assert snap_compare(app, terminal_size=size, run_before=partial(drawn, place))


def test_help(snap_compare: Compare, make_app: MakeApp) -> None:
    assert snap_compare(make_app(), terminal_size=(100, 40), run_before=with_help)
