"""Every place: how one gets there and back, what stands there, what its keys do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from textual.command import CommandPalette
from textual.widgets import Static

from runbook.tui.app import RunbookApp
from runbook.tui.dialogs import AskScreen
from runbook.tui.places import BY_PLACE, PLACES
from runbook.tui.screens.board import BoardScreen
from runbook.tui.screens.log import LogScreen
from runbook.tui.screens.pages import WelcomeScreen
from runbook.tui.widgets.text_list import TextList
from tests.support.fake_service import NOW, World, ago, make_attempt, make_task, training_log
from tests.support.tui_driver import driven, in_front, offers
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from textual.pilot import Pilot

MakeApp = Callable[..., RunbookApp]


def seen(app: RunbookApp) -> str:
    """All text on the screen in front."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def shown(app: RunbookApp, selector: str) -> str:
    widget = app.screen.query_one(selector, Static)
    return "\n".join(widget.render_line(y).text for y in range(widget.size.height))


async def go(pilot: Pilot[int], place: str) -> Any:
    """The place by its number key."""
    app = pilot.app
    assert isinstance(app, RunbookApp)
    number = [p.id for p in PLACES].index(place) + 1
    await pilot.press(str(number))
    await wait_until(lambda: place == app.place.PLACE and app.place.ready, place)
    await pilot.pause()
    return app.place


def is_seen(app: RunbookApp, text: str) -> bool:
    return text in seen(app)


async def sees(app: RunbookApp, *texts: str) -> None:
    for text in texts:
        await wait_until(partial(is_seen, app, text), f"{text!r} on the screen")


@pytest.mark.parametrize("size", [(80, 24), (140, 45)], ids=["80x24", "140x45"])
async def test_there_and_back(make_app: MakeApp, size: tuple[int, int]) -> None:
    app = make_app()
    async with driven(app, size) as pilot:
        for place in PLACES[1:]:
            await go(pilot, place.id)
            assert place.title in shown(app, "#places")
            assert " runbook " in shown(app, "#command")
            assert shown(app, "#keys").strip()
            await pilot.press("tab", "j", "G", "ctrl+u", "h", "shift+tab")
            await pilot.press("escape")
            await in_front(app, BoardScreen)
        await go(pilot, "log")
        await go(pilot, "hosts")
        assert len(app.screen_stack) == 3
        await pilot.press("q")
        await in_front(app, BoardScreen)


async def test_places_by_mouse_and_palette(make_app: MakeApp) -> None:
    app = make_app()
    async with driven(app) as pilot:
        where = shown(app, "#places").index("4 Hosts")
        await pilot.click("#places", offset=(where, 0))
        await wait_until(lambda: app.place.PLACE == "hosts", "the hosts")
        await pilot.press("colon")
        await in_front(app, CommandPalette)
        await pilot.press(*"go to eval")
        await offers(app, "Go to eval")
        await pilot.press("enter")
        await wait_until(lambda: app.board.tasks.current == "eval", "the task")
        await wait_until(lambda: app.screen is app.board, "the board")


async def test_task(make_app: MakeApp, world: World) -> None:
    tasks = tuple(
        replace(t, definition={"with": {"steps": 1000, "sh": "a\nb [/]"}}) if t.id == "train" else t
        for t in world.snapshot.tasks
    )
    world.change(tasks=tasks)
    app = make_app()
    async with driven(app, (140, 60)) as pilot:
        await wait_until(lambda: bool(app.view.snapshot.task("train").definition), "the view")
        await pilot.press("enter")
        await wait_until(lambda: app.place.PLACE == "task", "the task")
        await sees(app, "train  Train the drafter", "needed by", "eval", "steps: 1000", "b [/]")
        await sees(app, "runs /bin/true for train", "oom  exit 1")
        await pilot.press("right_square_bracket")
        await sees(app, "Acceptance length")
        await pilot.press("escape")
        await in_front(app, BoardScreen)
        assert app.board.tasks.current == "eval"


async def test_log_streams_attempts_and_growth(make_app: MakeApp, world: World) -> None:
    world.write_log("train", "out", b"first try\nCUDA out of memory\n", attempt="train-1")
    app = make_app()
    async with driven(app) as pilot:
        await pilot.press("L")
        await in_front(app, LogScreen)
        log = app.place.log_view  # type: ignore[attr-defined]
        await wait_until(lambda: log.file.line_count == 620, "the log")
        assert "runbook logs train -f" in shown(app, "#command")
        world.write_log("train", "out", b"tail\n", append=True)
        await wait_until(lambda: log.file.line_count == 621, "growth")
        await pilot.press("left_square_bracket")
        await sees(app, "attempt 1 of 2 on gpu", "first try")
        assert shown(app, "#command").strip().endswith("runbook logs train --attempt 1")
        await pilot.press("left_square_bracket")
        await sees(app, "There is no earlier attempt", "attempt 1 of 2")
        await pilot.press("right_square_bracket", "e")
        await sees(app, "attempt 2 of 2", "err")
        third = make_attempt("train", 3, state="running", cls=None, exit_code=None, ended=None)
        world.write_log("train", "out", b"once more\n", attempt=third.id)
        world.change(attempts=(*world.snapshot.attempts, third))
        await sees(app, "attempt 3 of 3")
        await pilot.press("e", "k", "j", "ctrl+u", "g", "l", "h", "f", "G")
        await pilot.press("q")
        await in_front(app, BoardScreen)


async def test_log_search_filter_failure_copy(make_app: MakeApp, world: World) -> None:
    lines = training_log(3000).replace(b"step  1500", b"ERROR 1500 step").splitlines(keepends=True)
    world.write_log("train", "out", b"".join(lines))
    app = make_app()
    async with driven(app) as pilot:
        place = await go(pilot, "log")
        view = place.log_view
        await pilot.press("slash", *",477 t", "enter")
        await wait_until(lambda: view.found is not None, "a match")
        assert view.found == 2976  # the last one: the end was followed
        assert not view.follow
        await pilot.press("N")
        assert view.found == 2876
        await pilot.press("n", "n")
        assert "From the top again" in shown(app, "#message")
        assert view.found is not None
        assert view.found < 100
        await pilot.press("ampersand")
        await sees(app, "only those")
        assert view.row_count == len(view.matches.lines)
        assert all(",477 t" in line for line in view.visible_lines())
        await pilot.press("ampersand", "escape")  # the message first
        await pilot.press("escape")
        assert view.matches is None
        await pilot.press("exclamation_mark")
        assert view.found == 1499
        await pilot.press("Y")
        assert "ERROR 1500" in app.clipboard
        await pilot.press("slash", *"no such thing", "enter")
        await sees(app, "0 matching")
        await pilot.press("n")
        await sees(app, "Nothing here matches")


async def test_hosts(make_app: MakeApp, world: World) -> None:
    world.change(meta=replace(world.snapshot.meta, extra={"roles": '{"gpu": {}, "second": {}}'}))
    app = make_app()
    async with driven(app, (140, 45)) as pilot:
        await go(pilot, "hosts")
        await sees(
            app, "root@203.0.113.7:40022", "epoch e1", "3.2 s behind", "$7.98 an hour",
            "9h 00m left", "32 cores", "NVIDIA H200", "97% busy", "only 167.5 GB", "/workspace",
            "network: no environments on it", "train has 68.7 GB leased", "fast, reads 2.1 GB/s",
            "empty, so not measured yet",
            "hangs: nothing may touch it", "8888", "serving",
        )  # fmt: skip
        assert "host probe gpu" in shown(app, "#command")
        await wait_until(lambda: "second" in seen(app), "the unbound role")
        await pilot.press("P")
        await wait_until(lambda: ("probe", "gpu") in world.calls, "the probe")
        await pilot.press("j")
        await sees(app, "No machine plays this role yet", "runbook host bind second")


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"gpus": "none", "mounts": [1, None], "shm": [], "cpu": 3, "memory": None, "radar": "[/]"},
        {"gpus": [{}], "mounts": [{"path": "[/]", "verdict": "[/] slow"}], "clock_offset_s": True},
        {"radar": [{"path": "/w [/]", "verdict": "slow", "why": "40 s to import"}, 3]},
    ],
)
async def test_hosts_read_facts_leniently(
    make_app: MakeApp, world: World, facts: dict[str, Any]
) -> None:
    world.change(hosts=tuple(replace(h, facts=facts) for h in world.snapshot.hosts))
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "hosts")
        await sees(app, "tasks here are done")


async def test_training(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app, (140, 45)) as pilot:
        place = await go(pilot, "training")
        await sees(
            app,
            "step 620 of 1,000",
            "target waited",
            "accuracy by slot",
            "slot 15",
            "tokens a second",
        )
        await sees(app, "step 600", "latest", "/work/drafter/step-000400", "best", "and 2 more")
        await sees(app, "gpu 1 96% busy 128.8 GB of 151.4 GB")
        assert [plot.display for plot in place.plots] == [True] * 4
        world.write_log("train", "progress", b'{"kind":"step","done":621,"metrics":{"loss":2}}\n',
                        append=True)  # fmt: skip
        await wait_until(lambda: place._metrics.steps[-1] == 621, "another step")
        await pilot.press("tab", "right_square_bracket", "y")
        assert app.clipboard == "runbook checkpoints train"
        world.change(tasks=tuple(t for t in world.snapshot.tasks if t.id != "train"))
        await sees(app, "No task of this runbook trains")


async def test_data(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app, (140, 45)) as pilot:
        place = await go(pilot, "data")
        await sees(app, "8,000  (train 7,200, heldout 800)", "fails: 1.25% are cut off", "p-17")
        await sees(app, "0-511")
        await pilot.press("j")
        await sees(app, "loss mask", "trained on", "[/] Because", "Because.")
        await pilot.press("slash", *"truncated", "enter")
        await wait_until(lambda: len(place._rows) == 2, "one sample")
        await pilot.press("j")
        await sees(app, "2,000 tok")
        assert world.calls.count(("audit", "audit")) == 1


async def test_data_that_cannot_be_fetched(make_app: MakeApp, world: World) -> None:
    world.error = RuntimeError("no link [/]")
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "data")
        await sees(app, "enter asks again")
        world.error = None
        await pilot.press("escape", "enter")
        await sees(app, "8,000")


async def test_attention(make_app: MakeApp, world: World) -> None:
    world.move("smoke", "attention", "its supervisor is gone")
    attempts = (*world.snapshot.attempts, make_attempt("smoke", 3, state="lost",
                                                       cls="lost_supervisor_died"))  # fmt: skip
    world.change(attempts=attempts)
    world.edited = True
    world.documents = {"plan.md": "changed"}
    app = make_app()
    async with driven(app, (140, 45)) as pilot:
        await wait_until(lambda: len(app.matters()) == 4, "the matters")
        assert "Attention 4" in shown(app, "#places")
        await go(pilot, "attention")
        await sees(
            app, "speaks for it", "the machine is in the same boot", "speaks against it",
            "lost: supervisor died", "supersede smoke --reason", "runbook.yaml was edited",
        )  # fmt: skip
        await pilot.press("j")
        await sees(app, "runbook gate approve look", "audit is done")
        await pilot.press("c")
        await in_front(app, AskScreen)
        await pilot.press(*"fine", "enter")
        await wait_until(lambda: ("approve", "look", "fine") in world.calls, "the yes")
        await pilot.press("g", "enter")
        await wait_until(lambda: app.place.PLACE == "task", "the task")


async def test_attention_to_machines(make_app: MakeApp, world: World) -> None:
    host = world.snapshot.hosts[0]
    world.change(hosts=(replace(host, ends_at=ago(-600)),))
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "attention")
        await sees(app, "gpu is rented until")
        await pilot.press("G")
        await sees(app, "in 10m 00s")
        world.change(hosts=(replace(host, unreachable_since=ago(120)),))
        await sees(app, "gpu does not answer", "no link")
        await pilot.press("G", "enter")
        await wait_until(lambda: app.place.PLACE == "hosts", "the machine")
        world.change(hosts=())
        await sees(app, "No machine plays this role yet")


async def test_nothing_waits(make_app: MakeApp, world: World) -> None:
    world.change(tasks=(make_task("a", state="done", role=None),), hosts=())
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "attention")
        await sees(app, "Nothing waits for you")


async def test_timeline(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app, (140, 45)) as pilot:
        place = await go(pilot, "timeline")
        await sees(app, "the answer was empty", "the box is slow", "Event 5")
        await pilot.press("slash", *"actor:anna host:gpu", "enter")
        await wait_until(lambda: len(place._rows) == 1, "one event")
        await sees(app, "retried", "by  anna")
        await pilot.press("left_square_bracket", "right_square_bracket", "enter")
        await wait_until(lambda: app.place.PLACE == "task", "its task")
        await sees(app, "Train the drafter")


async def test_handoff(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app) as pilot:
        await go(pilot, "handoff")
        await sees(app, "[/] is no markup here", "tokens")
        await pilot.press("D")
        await in_front(app, AskScreen)
        await pilot.press(*"lr 6", "enter")
        await wait_until(lambda: ("note", "lr 6", None, True) in world.calls, "the decision")
        await wait_until(lambda: app.place.PLACE == "handoff" and app.screen is app.place, "it")
        await pilot.press("p")
        await in_front(app, AskScreen)
        await pilot.press(*"s3://b/k", "enter")
        await sees(app, "s3://b/k has revision")
        await pilot.press("Y")
        assert app.clipboard.startswith("# Brief")


async def test_the_footer_says_where_q_and_esc_lead(make_app: MakeApp, world: World) -> None:
    app = make_app()
    async with driven(app, (80, 24)) as pilot:
        assert "q Quit" in shown(app, "#keys")
        for place in PLACES[1:]:
            await go(pilot, place.id)
            footer = shown(app, "#keys")
            assert "q Quit" not in footer
            assert "esc Back" in footer or "q Board" in footer
            assert "? Help" in footer
            await pilot.press("q")
            assert app.screen is app.board
        await pilot.resize_terminal(140, 45)
        for place in PLACES[1:]:
            await go(pilot, place.id)
            await wait_until(lambda: "q Board" in shown(app, "#keys"), "where it leads")


async def test_keys_of_a_search_are_offered_while_there_is_one(
    make_app: MakeApp, world: World
) -> None:
    app = make_app()
    async with driven(app, (80, 24)) as pilot:
        await pilot.press("3")
        await in_front(app, LogScreen)
        assert "& Matching" not in shown(app, "#keys")
        await pilot.press("slash", *"step", "enter")
        await wait_until(lambda: "n Next  & Matching" in shown(app, "#keys"), "they")
        await pilot.press("escape")
        await wait_until(lambda: "& Matching" not in shown(app, "#keys"), "they away")


async def test_read_only_places(make_app: MakeApp, world: World) -> None:
    app = make_app(read_only=True)
    async with driven(app) as pilot:
        for place in ("attention", "handoff", "hosts", "task"):
            await go(pilot, place)
            for key in "xRscnDvCPSpba":
                await pilot.press(key)
                assert app.screen is app.place
        assert world.calls == []


async def test_an_empty_runbook_says_what_to_do(make_app: MakeApp, world: World) -> None:
    world.change(tasks=(), attempts=(), hosts=(), checks=(), notes=())
    world.live.clear()
    world.events.clear()
    app = make_app()
    async with driven(app, (80, 24)) as pilot:
        await sees(app, "runbook init")
        for place, said in (
            ("task", "No task is chosen"), ("log", "No task is chosen"),
            ("hosts", "names no host roles"), ("training", "No task of this runbook trains"),
            ("data", "no audit task"), ("attention", "Nothing waits"),
            ("timeline", "Nothing has happened"), ("handoff", "revision"),
        ):  # fmt: skip
            await go(pilot, place)
            await sees(app, said)
            assert "L Log" not in shown(app, "#keys") or place not in ("data", "training")


async def test_the_welcome_comes_once_and_the_place_is_remembered(
    make_app: MakeApp, world: World
) -> None:
    memory = world.folder / "tui.json"
    app = make_app(memory_file=memory)
    async with app.run_test(size=(80, 24)) as pilot:
        await in_front(app, WelcomeScreen)
        await sees(app, "This is your runbook", "leaves; jobs")
        await pilot.press("enter")
        await in_front(app, BoardScreen)
        app.board.go_to("weights")
        app.theme = "runbook-light"
        await pilot.press("q")
    again = make_app(memory_file=memory)
    async with driven(again):
        assert again.theme == "runbook-light"
        assert again.board.tasks.current == "weights"
    memory.write_text("{torn")
    third = make_app(memory_file=memory)
    async with third.run_test():
        await in_front(third, WelcomeScreen)


async def test_two_screens_on_one_workspace(make_app: MakeApp, world: World) -> None:
    first, second = make_app(), make_app()
    async with driven(first), driven(second) as pilot:
        second.board.go_to("smoke")
        await pilot.pause()
        await pilot.press("R")
        await wait_until(lambda: first.view.snapshot.task("smoke").state == "ready", "the other")


def test_every_place_names_itself() -> None:
    for name, place in BY_PLACE.items():
        assert name == place.load().PLACE
    assert NOW.tzinfo is not None
    assert issubclass(TextList, object)
