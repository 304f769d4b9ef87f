"""After a break: where one was, what happened since, what was done here, and taking it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from runbook.tui import away
from runbook.tui.app import RunbookApp
from runbook.tui.dialogs import AskScreen
from runbook.tui.memory import Keeper, Memory
from runbook.tui.screens.pages import DeedsScreen
from runbook.views import NextAction
from tests.support.fake_service import NOW, World, broken
from tests.support.tui_driver import driven, in_front
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from textual.pilot import Pilot

MakeApp = Callable[..., RunbookApp]


def left(world: World, seconds: float, **more: object) -> Path:
    """A memory of somebody who looked so long ago."""
    path = world.folder / "tui.json"
    when = (NOW - timedelta(seconds=seconds)).isoformat()
    path.write_text(json.dumps({"welcomed": True, "seen_at": when, "revision": 0, **more}))
    return path


def said(app: RunbookApp) -> str:
    told = app.place.message.said_last
    return told.text if told is not None else ""


async def test_what_happened_since_is_told_until_it_is_put_away(
    make_app: MakeApp, world: World
) -> None:
    app = make_app(memory_file=left(world, 3600))
    async with driven(app) as pilot:
        await wait_until(lambda: said(app).startswith("Since you left 1h 00m ago"), "the news")
        assert "smoke failed" in said(app)
        assert "look waits for a person" in said(app)
        assert app.board.message._fade is None, "it stays"
        await pilot.press("escape")
        assert said(app) == ""


async def test_a_short_absence_is_not_worth_a_word(make_app: MakeApp, world: World) -> None:
    app = make_app(memory_file=left(world, 120))
    async with driven(app) as pilot:
        await pilot.pause()
        assert said(app) == ""


def test_many_tasks_are_counted(world: World) -> None:
    view = world.open().view()
    before = Memory(seen_at=(NOW - timedelta(seconds=9000)).isoformat(), revision=-1)
    told = away.since(view, before, now=NOW)
    assert "8 tasks done" in told
    same = Memory(seen_at=before.seen_at, revision=view.snapshot.revision)
    assert away.since(view, same, now=NOW) == ""


async def test_a_killed_screen_comes_back_to_its_place(make_app: MakeApp, world: World) -> None:
    memory = left(world, 1)
    app = make_app(memory_file=memory)
    async with driven(app) as pilot:
        app.board.go_to("weights")
        await pilot.press("2")
        await wait_until(
            lambda: json.loads(memory.read_text()).get("place") == "task", "it written down"
        )
        kept = memory.read_bytes()  # and now the process is gone: it says no goodbye
    memory.write_bytes(kept)
    again = make_app(memory_file=memory)
    async with again.run_test(size=(120, 40)):
        await wait_until(lambda: again.place.PLACE == "task" and again.place.ready, "its place")
        assert again.place.current_task is not None
        assert again.place.current_task.id == "weights"
        again.ways.go_back()
        await wait_until(lambda: again.screen is again.board, "the board")
        assert again.board.tasks.current == "weights"


def test_a_damaged_memory_is_none(tmp_path: Path) -> None:
    path = tmp_path / "tui.json"
    for text in ("[]", "{torn", '{"task": 3}', '{"toggled": 4}', '{"revision": "x"}'):
        path.write_text(text)
        assert Keeper(path).kept == Memory()
    path.write_text('{"task": "a", "toggled": ["f"], "from a later release": 1}')
    assert Keeper(path).kept == Memory(task="a", toggled=("f",))


async def skip(app: RunbookApp, pilot: Pilot[int], task: str) -> None:
    before = len(app.deeds.all)
    app.board.go_to(task)
    await pilot.press("s")
    await in_front(app, AskScreen)
    await pilot.press(*"why", "enter")
    await wait_until(lambda: len(app.deeds.all) > before and not app.bridge.busy, "the skip")


async def test_done_work_is_made_again_where_somebody_says_why(
    make_app: MakeApp, world: World
) -> None:
    app = make_app()
    async with driven(app) as pilot:
        app.board.go_to("audit")
        await pilot.press("R")
        await in_front(app, AskScreen)
        await pilot.press("enter")  # without a word it stays
        assert isinstance(app.screen, AskScreen)
        await pilot.press(*"why", "enter")
        await wait_until(lambda: world.state("audit") == "ready", "the new attempt")
        assert ("retry", "audit", "why") in world.calls


async def test_what_is_next_is_done_as_it_is_said(make_app: MakeApp, world: World) -> None:
    command = "runbook retry smoke --below"
    world.next = NextAction(verb="retry", task="smoke", command=command, reason="it is stale")
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("full_stop")
        await wait_until(lambda: ("retry", "smoke", "below") in world.calls, "the retry")
        assert app.deeds.all[-1].command == command


async def test_a_skip_is_taken_back_and_only_once(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await skip(app, pilot, "eval")
        await wait_until(lambda: world.state("eval") == "skipped", "the skip")
        await pilot.press("z")
        await wait_until(lambda: world.state("eval") == "ready", "it taken back")
        assert ("retry", "eval") in world.calls
        await wait_until(lambda: not app.bridge.busy, "the answer")
        await pilot.press("z")
        assert "Nothing to take back" in said(app)


async def test_a_claim_is_taken_back(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        app.board.go_to("train")
        await pilot.press("C")
        await wait_until(lambda: "train" in world.claims, "the claim")
        await wait_until(lambda: not app.bridge.busy, "the answer")
        await pilot.press("z")
        await wait_until(lambda: "train" not in world.claims, "it given back")


async def test_what_failed_is_no_deed_to_take_back(make_app: MakeApp, world: World) -> None:
    world.error = broken()
    app = make_app()
    async with driven(app) as pilot:
        await skip(app, pilot, "eval")
        await wait_until(lambda: bool(said(app)), "the error")
        await pilot.press("escape", "z")
        assert "Nothing to take back" in said(app)
        await pilot.press("at")
        await in_front(app, DeedsScreen)
        assert "cannot retry train" in app.deeds.all[0].outcome


async def test_commands_done_here_are_listed_and_copied(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        app.board.go_to("smoke")
        await pilot.press("R")
        await wait_until(lambda: world.state("smoke") == "ready", "the retry")
        await wait_until(lambda: not app.bridge.busy, "the answer")
        await skip(app, pilot, "eval")
        await wait_until(lambda: not app.bridge.busy, "the answer")
        assert [deed.command for deed in app.deeds.all] == [
            "runbook retry smoke", "runbook skip eval --reason why",
        ]  # fmt: skip
        await pilot.press("at")
        await in_front(app, DeedsScreen)
        await pilot.press("j", "enter")
        await wait_until(lambda: app.screen is app.board, "the board")
        assert app.clipboard == "runbook retry smoke"
