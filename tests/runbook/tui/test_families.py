"""A family of tasks is one line until it is wanted in full; it says what most needs to be seen."""

from __future__ import annotations

from collections.abc import Callable

from runbook.signs import SIGNS
from runbook.tui import board_model as model
from runbook.tui.app import RunbookApp
from runbook.tui.glyphs import FANCY, PLAIN
from state.model import TaskState
from tests.support.fake_service import World, make_task
from tests.support.tui_driver import driven
from tests.support.waiting import wait_until

MakeApp = Callable[..., RunbookApp]


def with_families(world: World) -> None:
    shards = [
        make_task(f"shard[{n}]", f"Shard {n}", phase="data", state="done" if n < 9 else "ready")
        for n in range(16)
    ]
    pair = [make_task(f"server@{box}", f"Server {box}", phase="data") for box in "ab"]
    world.change(tasks=(*world.snapshot.tasks, *shards, *pair))


def listed(app: RunbookApp) -> str:
    tasks = app.board.tasks
    return "\n".join(tasks.render_line(y).text for y in range(tasks.size.height))


def seen(app: RunbookApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def test_folded_unfolded_and_folded_again(make_app: MakeApp, world: World) -> None:
    with_families(world)
    app = make_app()
    async with driven(app, (120, 60)) as pilot:
        assert "shard[16]" in listed(app)
        assert "9/16" in listed(app)
        assert "Shard 3" not in listed(app)
        assert "Server a" in listed(app), "a pair is short enough to be shown"
        app.board.tasks.select("shard" + model.FAMILY)
        await pilot.pause()
        assert app.board.current_task is None
        assert "space Fold" in app.board.keys.render_line(0).text
        await pilot.press("space")
        assert "Shard 3" in listed(app)
        assert app.board.tasks.current == "shard[0]"
        await pilot.press("j", "j", "space")
        assert "Shard 3" not in listed(app)
        assert app.board.tasks.current == "shard" + model.FAMILY
        await pilot.press("enter")
        assert "Shard 3" in listed(app), "enter goes into it"


async def test_the_line_wears_the_state_that_needs_to_be_seen(
    make_app: MakeApp, world: World
) -> None:
    with_families(world)
    app = make_app()
    async with driven(app, (120, 60)):
        world.move("shard[12]", "failed", "a row was broken")
        await wait_until(lambda: "✗ shard[16]  1 failed" in listed(app), "the failure on its line")
        app.board.tasks.select("shard" + model.FAMILY)
        await wait_until(lambda: "a row was broken" in seen(app), "its reason beside")


async def test_what_is_searched_for_and_gone_to_is_never_folded(
    make_app: MakeApp, world: World
) -> None:
    with_families(world)
    app = make_app()
    async with driven(app, (120, 60)) as pilot:
        await pilot.press("slash", *"shard", "space", *"3", "enter")
        await wait_until(lambda: "Shard 13" in listed(app), "the members that match")
        await pilot.press("escape")
        assert "Shard 13" not in listed(app)
        app.board.go_to("shard[13]")
        assert app.board.tasks.current == "shard[13]"
        assert "Shard 13" in listed(app)


async def test_the_cursor_goes_along_with_a_folded_family(make_app: MakeApp, world: World) -> None:
    with_families(world)
    world.move("train", "done")
    world.move("shard[9]", "active")
    app = make_app()
    async with driven(app, (120, 60)):
        assert app.board.tasks.current == "shard" + model.FAMILY


def test_signs_are_one_table() -> None:
    assert all(FANCY.state(name) == sign for name, sign in SIGNS.items())
    assert set(PLAIN.states) == set(SIGNS)
    assert {str(state) for state in TaskState} < set(SIGNS)


async def test_the_command_of_a_member_is_one_that_a_shell_takes(
    make_app: MakeApp, world: World
) -> None:
    with_families(world)
    app = make_app()
    async with driven(app, (120, 60)) as pilot:
        app.board.go_to("shard[12]")
        await pilot.press("y")
        assert app.clipboard == "runbook run"
        world.move("shard[12]", "failed")
        await wait_until(lambda: "'shard[12]'" in app.board.suggested(), "the retry")
        await pilot.press("y")
        assert app.clipboard == "runbook retry 'shard[12]'"
