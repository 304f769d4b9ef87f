"""Everything a host, a file or another person wrote may be hostile; the screen must not mind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from textual.command import CommandPalette

from runbook.engine.events import Info, Problem
from runbook.tui.bridge import Broke, Carried
from runbook.tui.dialogs import AskScreen
from runbook.tui.screens.board import BoardScreen
from runbook.tui.screens.handoff import HandoffScreen
from runbook.tui.screens.log import LogScreen
from runbook.tui.screens.pages import HelpScreen
from runbook.views import Live
from tests.support.fake_service import World, ago, make_attempt, make_check, make_task
from tests.support.tui_driver import driven, in_front
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.tui.app import RunbookApp

ATTACKS = {
    "closing tag": "[/]",
    "markup": "[0] [bold red]x[/bold [@click=app.exit]click[/] [link=x",
    "terminal": "\x1b[2J\x1b[31mred\x1b]0;title\x07\x1b[?1049h\x00\x08\r\n\t\x9b31m",
    "bidi": "\u202eevil\u2066\u200b",
    "bomb": "\x1b[" * 5000 + "[" * 5000 + "\\[" * 2000,
    "wide": "\u6f22\u5b57" * 300 + "\U0001f4a5" * 50 + "a" + "\u0301" * 500,
    "long": "x" * 20_000,
    "empty": "",
}


def poison(world: World, text: str) -> None:
    """Put the text wherever somebody else can."""
    tasks = (
        make_task("t1", text, phase=text, state="failed", reason=text, step=text, out={text: text}),
        make_task("t2", "Runs", phase=text, state="active", reason=text, needs=["t1", text]),
        make_task("t3", text, phase="other", state="gated", reason=text, role=None),
    )
    world.change(
        tasks=tasks,
        attempts=(
            make_attempt("t1", state="exited", cls="exit", exit_code=1, host=text),
            make_attempt("t2", state="running", cls=None, ended=None, host=text),
        ),
        checks=(make_check("t1", text, "fail", {text: text, "list": [text, {"k": text}]}),),
        hosts=tuple(
            replace(h, address=text, user=text, seen_at=ago(1)) for h in world.snapshot.hosts
        ),
        meta=replace(world.snapshot.meta, title=text, extra={"phases": f'{{"other": "{"[/]"}"}}'}),
    )
    progress = {"done": 1, "total": 2, "unit": text, "message": text, "metrics": {text: text}}
    world.live = {
        "t2": Live(
            attempt="t2-1", progress=progress, out_size=1, err_size=0, beat=1, seen_at=ago(1)
        )
    }
    world.engine = text
    world.next = replace(world.next, task=text, command=text, reason=text)
    data = (text + "\n").encode("utf-8", "surrogatepass")
    world.write_log("t1", "out", data * 3)
    world.write_log("t2", "err", data)
    world.write_log("t2", "progress", data)


@pytest.mark.parametrize("name", ATTACKS)
async def test_hostile_text_is_only_text(
    make_app: Callable[..., RunbookApp], world: World, name: str
) -> None:
    text = ATTACKS[name]
    poison(world, text)
    app = make_app()
    async with driven(app, (100, 30)) as pilot:
        await pilot.press("j", "g")
        for fact in (
            Info(text=text),
            Problem(text=text, hint=text),
            Carried(command=text, answer=None),
            Broke(text=text, hint=text),
        ):
            app.ears.hear(fact)
        await pilot.press("escape", "L")
        await in_front(app, LogScreen)
        await pilot.press("escape")
        await in_front(app, BoardScreen)
        await pilot.press("G", "c")
        await in_front(app, AskScreen)
        await pilot.press("escape")
        await in_front(app, BoardScreen)
        for y in range(app.board.tasks.size.height):
            row = app.board.tasks.render_line(y)
            assert row.cell_length == app.board.tasks.size.width
            assert "\x1b" not in row.text


async def test_hostile_text_in_pages_and_palette(
    make_app: Callable[..., RunbookApp], world: World
) -> None:
    poison(world, "[/] [0] \x1b[31m")
    app = make_app()
    async with driven(app, (100, 30)) as pilot:
        for key, kind in (("B", HandoffScreen), ("question_mark", HelpScreen)):
            await pilot.press(key)
            await in_front(app, kind)
            await pilot.press("escape")
            await in_front(app, BoardScreen)
        await pilot.press("colon", *"t1")
        await in_front(app, CommandPalette)
        hits = app.screen.query_one("CommandList")
        await wait_until(lambda: hits.option_count > 0, "a hit")  # type: ignore[attr-defined]
        await pilot.press("escape")
        await in_front(app, BoardScreen)
        await pilot.press("slash", *"[/]", "enter")
        await wait_until(lambda: app.board.needle == "[/]", "the filter")
        assert app.is_running
