"""Behaviour of the board, driven by keys."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from textual.command import CommandPalette
from textual.widgets import Input, Static

from runbook.engine.events import Info, Problem
from runbook.tui.app import RunbookApp
from runbook.tui.commands import BoardCommands, rank
from runbook.tui.dialogs import AskScreen, ConfirmScreen, NameScreen
from runbook.tui.screens.board import BoardScreen
from runbook.tui.screens.pages import HelpScreen
from runbook.tui.widgets.bars import KeyBar, MessageBar
from runbook.views import RunResult
from tests.support.fake_service import World, broken, make_task, one_task_run, run_until_stopped
from tests.support.tui_driver import driven, in_front, offers
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from textual.pilot import Pilot
    from textual.widget import Widget

MakeApp = Callable[..., RunbookApp]


def shown(app: RunbookApp, selector: str) -> str:
    """The text of a widget on the screen in front."""
    widget = app.screen.query_one(selector, Static)
    return "\n".join(widget.render_line(y).text for y in range(widget.size.height))


def listed(app: RunbookApp) -> str:
    tasks = app.board.tasks
    return "\n".join(tasks.render_line(y).text for y in range(tasks.size.height))


def title(widget: Widget) -> str:
    """The title in the border of a pane."""
    return str(widget._border_title)


async def go(pilot: Pilot[int], task: str) -> None:
    """Put the cursor on a task."""
    app = pilot.app
    assert isinstance(app, RunbookApp)
    app.board.go_to(task)
    await wait_until(lambda: app.board.tasks.current == task, f"the cursor on {task}")
    await pilot.pause()


async def test_the_first_screen_says_what_matters(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.pause()
        assert "Qwen3.6-27B drafter" in shown(app, "#header")
        assert "facts 3s old" in shown(app, "#header")
        assert "Approve look   $ runbook gate approve look" in shown(app, "#next")
        assert app.board.tasks.current == "train"
        assert "◐ Train the drafter" in listed(app)
        assert "620/1,000 steps" in shown(app, "#description")
        assert app.board.log_view.file.line_count == 620


async def test_moving_shows_and_ends_following(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        assert app.board.cursor_follows
        await pilot.press("k")
        await pilot.pause()
        assert app.board.tasks.current == "tokenize"
        assert not app.board.cursor_follows
        assert "tokenize" in shown(app, "#description") or "Tokenize" in str(
            title(app.board.query_one("#detail"))
        )
        await pilot.press("g")
        assert app.board.tasks.current == "rent"
        await pilot.press("G")
        assert app.board.tasks.current == "push"
        await pilot.press("up", "down", "j", "ctrl+u", "pagedown")
        assert app.board.tasks.current == "push"
        await pilot.press("F")
        assert app.board.tasks.current == "train"


async def test_what_is_drawn_right_behind_a_key_takes_no_cursor_back(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app):
        app.board.tasks.move(1)  # what `j` does, and before any message of it is heard:
        app.redraw()
        assert app.board.tasks.current == "eval"


async def test_the_cursor_stays_on_its_task_when_rows_move(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "eval")
        before = make_task("first", "Comes first", phase="host")
        world.change(tasks=(before, *world.snapshot.tasks))
        await wait_until(lambda: "Comes first" in listed(app), "the new row")
        assert app.board.tasks.current == "eval"
        gone = tuple(replace(t, removed=t.id == "eval") for t in world.snapshot.tasks)
        world.change(tasks=gone)
        await wait_until(lambda: app.board.tasks.current != "eval", "another row")
        assert app.board.tasks.current in ("train", "export")


async def test_the_cursor_goes_along_with_what_runs(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app):
        world.move("train", "done")
        world.move("eval", "active")
        await wait_until(lambda: app.board.tasks.current == "eval", "the running task")


async def test_panes_by_tab_and_sideways(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        seen = []
        for key in ("tab", "tab", "tab", "shift+tab", "h", "left", "right"):
            await pilot.press(key)
            seen.append(app.focused.id if app.focused is not None else None)
        assert seen == ["detail", "log", "tasks", "log", "log", "log", "log"]
        await pilot.press("shift+tab")
        assert app.focused is not None
        assert app.focused.id == "detail"
        await pilot.press("j", "k", "G", "g", "ctrl+d", "ctrl+u", "h")
        assert app.focused.id == "tasks"


async def test_run_until_the_end(make_app: MakeApp, world: World) -> None:
    looked = threading.Event()

    def script(*given: Any) -> RunResult:
        looked.wait(60)  # the cursor goes along with what runs, and the line with the cursor
        return one_task_run("eval")(*given)

    world.script = script
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("r")
        assert "runbook run" in shown(app, "#command")
        looked.set()
        await wait_until(lambda: app.ears.result is not None, "the end of the run")
        await wait_until(lambda: "done" in row_of(app, "Acceptance length"), "the row")
        assert ("run", None, ()) in world.calls
        assert not app.bridge.engine_runs


async def test_run_twice_is_one_run(make_app: MakeApp, world: World) -> None:
    world.script = run_until_stopped
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("r")
        await wait_until(lambda: len(world.calls) == 1, "the run")
        await pilot.press("r")
        await wait_until(lambda: "runs already" in shown(app, "#message"), "the message")
        assert len(world.calls) == 1
        await wait_until(lambda: "runs here" in shown(app, "#header"), "who drives")
        app.bridge.close()


async def test_a_crash_of_the_engine_is_told_and_kept(
    make_app: MakeApp, world: World, tmp_path: object
) -> None:
    def script(*_: object) -> None:
        raise ZeroDivisionError("[/] in the engine")

    world.script = script  # type: ignore[assignment]
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("r")
        await wait_until(lambda: "crash.log" in shown(app, "#message"), "the problem")
        assert "ZeroDivisionError" in (world.folder / "crash.log").read_text()


@pytest.mark.parametrize(
    ("answer", "stopped"),
    [
        (["enter"], False),
        (["escape"], False),
        ([*"tra", "enter"], False),
        ([*"train", "enter"], True),
    ],
)
async def test_stop_wants_the_name_typed(
    make_app: MakeApp, world: World, answer: list[str], stopped: bool
) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "train")
        await pilot.press("x")
        await in_front(app, NameScreen)
        assert "Stop train?" in shown(app, "#dialog-title")
        await pilot.press(*answer)
        if not stopped and answer != ["escape"]:
            assert "Type train to go on" in shown(app, "#dialog-keys")
            await pilot.press("escape")
        await in_front(app, BoardScreen)
        if stopped:
            await wait_until(lambda: world.state("train") == "gated", "the stop")
            await wait_until(lambda: "✓ runbook stop train" in shown(app, "#command"), "the word")
            await wait_until(lambda: "stopped" in row_of(app, "Train the drafter"), "its look")
            assert "⊘" in row_of(app, "Train the drafter")
            assert "stopped by a person" in shown(app, "#description")
        assert (("stop", "train") in world.calls) is stopped


async def test_retry(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "smoke")
        assert "R Retry" in shown(app, "#keys")
        await pilot.press("R")
        await wait_until(lambda: world.state("smoke") == "ready", "the retry")


async def test_a_lost_attempt_is_given_up_with_a_reason(make_app: MakeApp, world: World) -> None:
    world.move("smoke", "attention", "lost: the machine was rebooted")
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "smoke")
        await pilot.press("R")
        await in_front(app, NameScreen)
        await pilot.press(*"smoke", "enter", "enter")
        assert "A few words" in shown(app, "#dialog-keys")
        await pilot.press(*"gone", "enter")
        await wait_until(lambda: ("supersede", "smoke", "gone") in world.calls, "the call")


async def test_skip_needs_a_reason(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "smoke")
        await pilot.press("s")
        await in_front(app, AskScreen)
        await pilot.press("enter")
        assert isinstance(app.screen, AskScreen)
        await pilot.press(*"q is typed", "enter")
        await wait_until(lambda: world.state("smoke") == "skipped", "the skip")
        assert ("skip", "smoke", "q is typed") in world.calls


async def test_approve_and_note(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "look")
        await pilot.press("c")
        await in_front(app, AskScreen)
        await pilot.press("enter")
        await wait_until(lambda: ("approve", "look", "") in world.calls, "the approval")
        await in_front(app, BoardScreen)
        await pilot.press("n")
        await in_front(app, AskScreen)
        await pilot.press(*"[/] seen", "enter")
        await wait_until(lambda: ("note", "[/] seen", "look", False) in world.calls, "the note")
        await wait_until(lambda: "me: [/] seen" in shown(app, "#description"), "the note shown")


async def test_escape_leaves_a_question_without_a_call(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "look")
        for key in ("s", "c", "n"):
            await pilot.press(key)
            await in_front(app, AskScreen)
            await pilot.press("escape")
            await in_front(app, BoardScreen)
        assert world.calls == []


async def test_an_error_stays_until_it_is_put_away(make_app: MakeApp, world: World) -> None:
    world.error = broken()
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "smoke")
        await pilot.press("R")
        await wait_until(lambda: "cannot retry train" in shown(app, "#message"), "the problem")
        assert "runbook stop train" in shown(app, "#message")
        app.ears.hear(Info(text="something else"))
        await pilot.pause()
        assert "cannot retry train" in shown(app, "#message")
        await pilot.press("c")
        await wait_until(lambda: "nobody's yes" in shown(app, "#message"), "what the key says")
        await pilot.press("escape")
        assert "cannot retry train" in shown(app, "#message"), "it was not put away"
        await pilot.press("escape")
        assert not app.board.query_one(MessageBar).has_class("-shown")


async def test_a_key_that_does_not_apply_says_why(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "train")
        for key, why in (("R", "did not end"), ("c", "nobody's yes")):
            await pilot.press(key)
            await wait_until(lambda why=why: why in shown(app, "#message"), why)  # type: ignore[misc]
        assert world.calls == []


async def test_read_only_offers_and_does_nothing(make_app: MakeApp, world: World) -> None:
    app = make_app(read_only=True, autorun=True)
    async with driven(app) as pilot:
        await go(pilot, "smoke")
        for key in "rxRscn":
            await pilot.press(key)
            assert isinstance(app.screen, BoardScreen)
        assert "Read-only" in shown(app, "#message")
        assert "Retry" not in shown(app, "#keys")
        assert "read-only" in shown(app, "#header")
        assert world.calls == []


async def test_filter(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("slash", *"serv")
        await wait_until(lambda: "Tokenize" not in listed(app), "fewer rows")
        assert "Serve the target" in listed(app)
        await pilot.press("enter")
        assert app.focused is app.board.tasks
        assert "Tokenize" not in listed(app)
        await pilot.press("escape")
        await wait_until(lambda: "Tokenize" in listed(app), "all rows")
        assert not app.board.query_one("#filter", Input).display


async def test_a_filter_without_a_match_is_no_error(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("slash", *"[/] nothing", "enter")
        await wait_until(lambda: app.board.tasks.current is None, "an empty list")
        for key in ("j", "k", "g", "G", "x", "R", "s", "c", "e", "f", "u", "v"):
            await pilot.press(key)
        assert isinstance(app.screen, BoardScreen)
        await pilot.press("escape", "escape")
        await wait_until(lambda: app.board.tasks.current is not None, "a task")


async def test_only_failed_and_waiting(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert "Smoke test" in listed(app)
        assert "Read samples" in listed(app)
        assert "Tokenize" not in listed(app)
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert "Tokenize" in listed(app)


async def test_log_follows_until_scrolled_up(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        log = app.board.log_view
        await wait_until(lambda: log.scroll_offset.y == log.max_scroll_y > 0, "the end")
        world.write_log("train", "out", b"another line\n", append=True)
        await wait_until(lambda: log.file.line_count == 621, "growth")
        assert log.scroll_offset.y == log.max_scroll_y
        await pilot.press("tab", "tab", "k")
        assert not log.follow
        assert "f follows" in title(log)
        where = log.scroll_offset.y
        world.write_log("train", "out", b"and another\n", append=True)
        await wait_until(lambda: log.file.line_count == 622, "growth")
        assert log.scroll_offset.y == where
        await pilot.press("f")
        assert log.follow
        assert log.scroll_offset.y == log.max_scroll_y
        await pilot.press("g")
        assert log.scroll_offset.y == 0
        assert not log.follow
        await pilot.press("G")
        assert log.follow


async def test_a_short_log_grows_line_by_line_on_the_screen(
    make_app: MakeApp, world: World
) -> None:
    world.write_log("train", "out", b"")
    app = make_app()
    async with driven(app):
        log = app.board.log_view
        written = b""
        for piece in (b"one\n", b"two\nth", b"ree\n", b"four"):
            world.write_log("train", "out", piece, append=True)
            written += piece
            expected = written.decode().splitlines()
            await wait_until(
                lambda expected=expected: (  # type: ignore[misc]
                    [log.render_line(y).text.strip() for y in range(len(expected) + 1)]
                    == [*expected, ""]
                ),
                f"the lines {expected}",
            )


async def test_log_sideways_and_streams(make_app: MakeApp, world: World) -> None:
    world.write_log("train", "err", b"a warning\n")
    app = make_app()
    async with driven(app) as pilot:
        log = app.board.log_view
        await pilot.press("tab", "tab", "l", "right", "h")
        assert log.shift == 20
        await pilot.press("e")
        await wait_until(lambda: log.file.line_count == 1, "the error stream")
        assert "Log (err)" in title(log)
        await pilot.press("e")
        await wait_until(lambda: log.file.line_count == 620, "the output")


async def test_a_long_line_ends_beside_the_scroll_bar(make_app: MakeApp, world: World) -> None:
    world.write_log("train", "out", b"x" * 400 + b"\n" + b"more\n" * 200)
    app = make_app()
    async with driven(app) as pilot:
        log = app.board.log_view
        await pilot.press("tab", "tab", "g")
        assert log.scrollbars_enabled == (True, False)
        rows = app.screen._compositor.render_strips()
        line = next(row.text for row in rows if "xxx" in row.text)
        assert line.rstrip()[-1] in "…▁▂▃▄▅▆▇"
        assert "x…" in line


async def test_what_was_said_to_one_key_is_old_with_the_next(
    make_app: MakeApp, world: World
) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "train")
        await pilot.press("c")
        assert "waits for nobody's yes" in shown(app, "#message")
        await pilot.press("a")
        assert "waits for nobody's yes" not in shown(app, "#message")
        await wait_until(lambda: "Looked at 1 attempt." in shown(app, "#message"), "what is new")


async def test_errors_are_shown_when_there_is_no_output(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "smoke")
        assert (
            app.board.log_view.render_line(0).text.strip() == "curl: (52) Empty reply from server"
        )
        await go(pilot, "rent")
        assert "No attempt" in app.board.log_view.render_line(0).text
        await go(pilot, "tokenize")
        assert "It wrote nothing here" in app.board.log_view.render_line(0).text


async def test_help_and_palette(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        for key in ("question_mark", "f1"):
            await pilot.press(key)
            await in_front(app, HelpScreen)
            await pilot.press("j", "escape")
            await in_front(app, BoardScreen)
        for key in ("colon", "ctrl+p"):
            await pilot.press(key)
            await in_front(app, CommandPalette)
            await pilot.press("escape")
            await in_front(app, BoardScreen)


async def test_the_palette_goes_to_a_task(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("colon")
        await in_front(app, CommandPalette)
        await pilot.press(*"weights")
        await offers(app, "Go to weights")
        await pilot.press("enter")
        await wait_until(lambda: app.board.tasks.current == "weights", "the cursor")


async def test_the_palette_finds_a_key_by_its_word_and_offers_what_applies(
    make_app: MakeApp,
) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "rent")  # done by hand: nothing serves
        offered = [name async for name in _offered(app)]
        assert any(name.startswith("Retry: ") for name in offered)
        assert not any(name.startswith("Restart: ") for name in offered)
        await pilot.press("colon")
        await in_front(app, CommandPalette)
        await pilot.press(*"quit")
        await offers(app, "Quit: ")
        await pilot.press("enter")
        await wait_until(lambda: not app.is_running or len(app.screen_stack) > 2, "it leaves")


async def _offered(app: RunbookApp) -> AsyncIterator[str]:
    async for hit in BoardCommands(app.screen).discover():
        yield str(hit.text)


def test_what_begins_a_name_is_found_first() -> None:
    names = ["Undo, or close", "Host docker", "Redocument", "Go to doc-set", "Documents"]
    found = sorted(names, key=lambda name: -rank("doc", name))
    assert set(found[:2]) == {"Documents", "Go to doc-set"}
    assert found[2:] == ["Host docker", "Redocument", "Undo, or close"]


async def test_a_click_is_the_key(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        text = shown(app, "#keys")
        await pilot.click(KeyBar, offset=(text.index("? Help"), 0))
        await in_front(app, HelpScreen)
        await pilot.press("escape")
        await in_front(app, BoardScreen)
        await pilot.click("#tasks", offset=(6, 3))
        await wait_until(lambda: app.board.tasks.current == "probe", "the clicked task")


async def test_the_end_is_said_and_q_leaves(make_app: MakeApp, world: World) -> None:
    def script(w: World, *_: object) -> object:
        for task in w.snapshot.tasks:
            w.move(task.id, "done")
        w.live.clear()
        return one_task_run("push", steps=1)(w, _[0], _[1])  # type: ignore[arg-type]

    world.script = script  # type: ignore[assignment]
    app = make_app(autorun=True)
    async with driven(app) as pilot:
        await wait_until(lambda: "All 15 tasks are done in" in shown(app, "#next"), "the end")
        await pilot.press("q")
    assert app.return_code == 0
    assert "All 15 tasks are done" in app.farewell().plain


async def test_q_asks_while_it_runs_and_twice_leaves(make_app: MakeApp, world: World) -> None:
    world.script = run_until_stopped
    app = make_app(autorun=True)
    async with driven(app) as pilot:
        await wait_until(lambda: bool(world.calls), "the run")
        await pilot.press("q")
        await in_front(app, ConfirmScreen)
        assert "The jobs go on (serve, train)" in shown(app, "#dialog-body")
        await pilot.press("escape")
        await in_front(app, BoardScreen)
        await pilot.press("q")
        await in_front(app, ConfirmScreen)
        await pilot.press("q")
    assert app.return_code == 10
    assert "Still running on their hosts: serve, train" in app.farewell().plain


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
async def test_leaving_at_once_when_nothing_is_driven(make_app: MakeApp, key: str) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press(key)
    assert app.return_code == 0


async def test_any_size_draws(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        for size in ((80, 24), (40, 12), (200, 60)):
            await pilot.resize_terminal(*size)
            await pilot.press("g", "G")
            assert app.board.tasks.size.width > 0
            assert all(len(line) <= size[0] for line in shown(app, "#header").splitlines())


async def test_another_clients_progress_is_seen(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app):
        live = world.live["train"]
        assert live.progress is not None
        world.live["train"] = replace(live, progress={**live.progress, "done": 900})
        await wait_until(lambda: "90%" in row_of(app, "Train the drafter"), "the percentage")


async def test_a_problem_of_the_engine_is_told(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        app.ears.hear(Problem(text="gpu is gone [/]", hint="runbook host probe gpu"))
        await pilot.pause()
        assert "gpu is gone [/]" in shown(app, "#message")
        assert "runbook host probe gpu" in shown(app, "#message")


async def test_a_long_problem_says_how_it_is_put_away(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app, (80, 24)) as pilot:
        app.ears.hear(Problem(text="gpu answers wrongly: " + "no room " * 15, hint="look " * 40))
        await pilot.pause()
        lines = shown(app, "#message").splitlines()
        assert len(lines) == 4
        assert lines[0].startswith(" ✗ gpu answers wrongly")
        assert lines[-1].rstrip().endswith("…   esc puts this away")
        app.ears.hear(Problem(text="gpu is gone", hint="look " * 13 + "there"))
        await pilot.pause()
        said = shown(app, "#message").rstrip()
        assert said.endswith("esc puts this away")
        assert "there" in said


async def test_themes_change_at_once(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        dark = app.looks.inks.busy
        for theme in ("runbook-light", "ansi-dark", "nord"):
            app.theme = theme
            await pilot.pause()
            assert "Approve look" in shown(app, "#next")
            assert app.looks.inks.busy != dark


def row_of(app: RunbookApp, title: str) -> str:
    return next((line for line in listed(app).splitlines() if title in line), "")


async def test_a_database_that_cannot_be_read_keeps_the_last_view(
    make_app: MakeApp, world: World
) -> None:
    app = make_app()
    async with driven(app):
        world.blind = broken()
        world.move("eval", "ready")
        await wait_until(lambda: "cannot retry" in shown(app, "#message"), "the problem")
        assert "Train the drafter" in listed(app)
        world.blind = None
        await wait_until(lambda: "ready" in row_of(app, "Acceptance length"), "the next reading")


async def test_a_slow_disk_holds_no_key(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        world.lock.acquire()  # whoever reads now waits
        try:
            world.version += 1
            await pilot.press("g", "j", "j")
            assert app.board.tasks.current == "venv-serve"
        finally:
            world.lock.release()


async def test_the_end_of_a_run_is_forgotten_when_the_next_begins(
    make_app: MakeApp, world: World
) -> None:
    def script(*_: object) -> RunResult:
        return RunResult(outcome="failed", reason="smoke failed")

    world.script = script
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("r")
        await wait_until(lambda: "smoke failed" in shown(app, "#message"), "how it ended")
        await go(pilot, "smoke")
        await pilot.press("R")
        await wait_until(lambda: world.state("smoke") == "ready", "the retry")
        await wait_until(lambda: not app.board.message.has_class("-shown"), "an empty line")


async def test_run_until_and_only(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "eval")
        for key, call, command in (
            ("u", ("run", "eval", ()), "runbook run --until eval"),
            ("o", ("run", None, ("eval",)), "runbook run eval"),
        ):
            await wait_until(lambda: not app.bridge.engine_runs, "nobody to run")
            await pilot.press(key)
            await wait_until(lambda call=call: call in world.calls, "the run")  # type: ignore[misc]
            assert command in shown(app, "#command")


async def test_restart_claim_decision_verify_probe(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "serve")
        await pilot.press("ctrl+r")
        await in_front(app, NameScreen)
        await pilot.press(*"serve", "enter")
        await wait_until(lambda: ("run", None, ()) in world.calls, "the new start")
        assert world.calls.index(("restart", "serve")) < world.calls.index(("run", None, ()))
        await in_front(app, BoardScreen)
        await pilot.press("C")
        await wait_until(lambda: ("claim", "serve") in world.calls, "the claim")
        await wait_until(lambda: "serve" in app.view.claims, "the claim seen")
        await pilot.press("C")
        await wait_until(lambda: ("release", "serve") in world.calls, "the release")
        await pilot.press("D")
        await in_front(app, AskScreen)
        await pilot.press(*"so", "enter")
        await wait_until(lambda: ("note", "so", "serve", True) in world.calls, "the decision")
        await in_front(app, BoardScreen)
        await go(pilot, "weights")
        await pilot.press("v")
        await wait_until(lambda: "1 of 1 checks hold" in shown(app, "#message"), "the verdict")
        await pilot.press("P")
        await wait_until(lambda: ("probe", "gpu") in world.calls, "the probe")
        await pilot.press("a")
        await wait_until(lambda: ("reconcile",) in world.calls, "the second look")


async def test_copying_goes_through_the_terminal(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("y")
        assert app.clipboard == "runbook logs train -f"
        await pilot.press("Y")
        assert app.clipboard.endswith("tok/s\n")
        assert "step   620" in app.clipboard


async def test_the_plain_set_is_plain(make_app: MakeApp) -> None:
    app = make_app(environment={"RUNBOOK_ASCII": "1"})
    async with driven(app, (80, 24)) as pilot:
        await pilot.press("G")
        for selector in ("#header", "#next", "#description", "#command", "#keys"):
            assert shown(app, selector).isascii(), selector
        assert listed(app).isascii()


async def test_letters_right_behind_the_slash_are_no_verbs(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        for key in ("slash", *"xsr"):
            app.simulate_key(key)  # without the pause that `press` makes
        await wait_until(lambda: app.focused is app.board.filter, "the filter")
        await pilot.press("a")
        await wait_until(lambda: app.board.needle.endswith("a"), "a letter")
        assert app.screen is app.board
        assert world.calls == []
