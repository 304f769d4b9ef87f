"""Keys that come faster than the screen: each does its work, in order, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runbook.tui import type_ahead
from runbook.tui.app import RunbookApp
from runbook.tui.dialogs import AskScreen, NameScreen
from runbook.tui.screens.pages import WelcomeScreen
from tests.support.fake_service import World, broken
from tests.support.tui_driver import driven, in_front, key_event
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pytest

MakeApp = Callable[..., RunbookApp]


def at_once(app: RunbookApp, *keys: str) -> None:
    """All of them, before the app has looked at any."""
    for key in keys:
        app.post_message(key_event(key))


def last_lines(app: RunbookApp) -> str:
    bars = (app.board.message, app.board.command)
    return "\n".join(bar.render_line(y).text for bar in bars for y in range(bar.size.height))


async def test_a_question_gets_what_was_typed_before_it_was_there(
    make_app: MakeApp, world: World
) -> None:
    app = make_app()
    async with driven(app):
        at_once(app, "n", *"seen", "enter", "j", "n", *"more", "enter")
        await wait_until(lambda: len(world.calls) == 2, "both notes")
        assert world.calls == [("note", "seen", "train", False), ("note", "more", "eval", False)]


async def test_a_filter_is_typed_and_left_in_one_go(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app):
        at_once(app, "slash", *"serv", "enter", "G", "x", *"smoke", "escape", "q")
        await wait_until(lambda: not app.is_running, "the end")
        assert app.board.needle == "serv"
    assert app.return_code == 0


async def test_a_name_and_a_reason(make_app: MakeApp, world: World) -> None:
    world.move("smoke", "attention", "lost")
    app = make_app()
    async with driven(app):
        app.board.go_to("smoke")
        at_once(app, "R", *"smoke", "enter", *"gone", "enter", "4", "1", "y")
        await wait_until(lambda: ("supersede", "smoke", "gone") in world.calls, "the call")
        await wait_until(lambda: bool(app.clipboard), "the last key")
        assert app.screen is app.board


async def test_the_first_page_swallows_no_key(make_app: MakeApp, world: World) -> None:
    app = make_app(memory_file=world.folder / "tui.json")
    async with app.run_test():
        await in_front(app, WelcomeScreen)
        at_once(app, "n", *"first", "enter")
        await wait_until(lambda: bool(world.calls), "the note")
        assert world.calls == [("note", "first", "train", False)]


async def test_a_run_waits_for_the_binding_that_it_needs(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        with world.lock:  # whoever acts now waits
            await pilot.press("b")
            await in_front(app, AskScreen)
            await pilot.press("enter", "r", "k")
            await wait_until(lambda: "under way" in last_lines(app), "that it is under way")
            assert "runbook run begins once this is done: runbook host bind gpu" in last_lines(app)
        await wait_until(lambda: ("run", None, ()) in world.calls, "the run")
        assert [call[0] for call in world.calls] == ["bind", "run"]
        await wait_until(lambda: "under way" not in last_lines(app), "that it is over")


async def test_a_run_does_not_follow_what_failed(make_app: MakeApp, world: World) -> None:
    world.error = broken()
    app = make_app()
    async with driven(app) as pilot:
        with world.lock:
            await pilot.press("P", "r")
        await wait_until(lambda: "cannot retry train" in last_lines(app), "what went wrong")
        await wait_until(lambda: not app.bridge.busy, "the last answer")
        assert [call[0] for call in world.calls] == ["probe"]
        assert "cannot retry train" in last_lines(app)
        await wait_until(lambda: "under way" not in last_lines(app), "that it is over")
        assert "runbook logs train -f" in last_lines(app), "it is not said to be done"
        assert "runbook run" not in app.board.command.render_line(0).text


async def test_a_widget_that_hangs_holds_the_keys_only_so_long(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type_ahead, "PATIENCE", 5)
    app = make_app()
    async with driven(app):
        monkeypatch.setattr(app.board.tasks, "call_later", lambda *_: True)  # and never does
        at_once(app, "n")
        await wait_until(lambda: isinstance(app.screen, AskScreen), "the question")
        await wait_until(lambda: app.screen.focused is not None, "its line")
        at_once(app, "escape")
        await wait_until(lambda: app.screen is app.board, "the board")


async def test_leaving_waits_for_no_key(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("x")
        await in_front(app, NameScreen)
        app._left = 1000  # a key that is never dealt with
        at_once(app, "a", "ctrl+q")
        await wait_until(lambda: not app.is_running, "the end")
