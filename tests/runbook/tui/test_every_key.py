"""Every row of the key table, pressed by each of its keys; a row without a case here fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from textual.command import CommandPalette

from runbook.tui.app import RunbookApp
from runbook.tui.deeds import Deeds
from runbook.tui.dialogs import AskScreen, NameScreen
from runbook.tui.keymap import BY_ID
from runbook.tui.places import PLACES
from runbook.tui.screens.log import LogScreen
from runbook.tui.screens.pages import DeedsScreen, HelpScreen
from runbook.tui.screens.place import PlaceScreen
from tests.support.tui_driver import driven
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from tests.support.fake_service import World

MakeApp = Callable[..., RunbookApp]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a case may look at: the app, the graph, and how things were before the key."""

    app: RunbookApp
    world: World
    before: dict[str, Any]

    def called(self, *call: object) -> bool:
        return call in self.world.calls[self.before["calls"] :]

    def moved(self, name: str) -> bool:
        return bool(state(self.app)[name] != self.before[name])

    def front(self, kind: type) -> bool:
        return isinstance(self.app.screen, kind)

    def at(self, place: str) -> bool:
        return place == self.app.place.PLACE and self.front(PlaceScreen)

    def says(self, text: str) -> bool:
        said = self.app.place.message.said_last
        return said is not None and text in said.text


@dataclass(frozen=True, kw_only=True)
class Case:
    """A key in a place, with the cursor on a task, after other keys; and what it must do."""

    then: Callable[[Scene], bool]
    task: str = "train"
    place: str = "board"
    first: tuple[str, ...] = ()


def state(app: RunbookApp) -> dict[str, Any]:
    place = app.place
    log = getattr(place, "log_view", None)
    return {
        "cursor": app.board.tasks.current,
        "focus": app.focused.id if app.focused is not None else None,
        "follow": log.follow if log is not None else None,
        "found": log.found if log is not None else None,
        "only": log.only is not None if log is not None else None,
        "stream": getattr(place, "stream", None),
        "attempt": getattr(place, "attempt", None),
        "trouble": app.board.trouble,
        "goes along": app.board.cursor_follows,
        "clipboard": app.clipboard,
    }


def asks(scene: Scene) -> bool:
    return scene.front(AskScreen)


def wants_a_name(scene: Scene) -> bool:
    return scene.front(NameScreen)


def moves(name: str) -> Callable[[Scene], bool]:
    return lambda scene: scene.moved(name)


CASES: dict[str, Case] = {
    "run": Case(then=lambda s: s.called("run", None, ())),
    "do_next": Case(then=asks, task="rent"),
    "until": Case(then=lambda s: s.called("run", "eval", ()), task="eval"),
    "only": Case(then=lambda s: s.called("run", None, ("eval",)), task="eval"),
    "stop": Case(then=wants_a_name),
    "retry": Case(then=lambda s: s.called("retry", "smoke"), task="smoke"),
    "restart": Case(then=wants_a_name, task="serve"),
    "skip": Case(then=asks, task="eval"),
    "approve": Case(then=asks, task="look"),
    "note": Case(then=asks),
    "decision": Case(then=asks),
    "claim": Case(then=lambda s: s.called("claim", "train")),
    "verify": Case(then=lambda s: s.called("verify", "tokenize"), task="tokenize"),
    "probe": Case(then=lambda s: s.called("probe", "gpu")),
    "bind": Case(then=asks),
    "reconcile": Case(then=lambda s: s.called("reconcile")),
    "shell": Case(then=lambda s: s.says("shell on gpu")),
    "undo": Case(then=lambda s: s.says("Nothing to take back")),
    "down": Case(then=moves("cursor"), first=("g",)),
    "up": Case(then=moves("cursor"), first=("G",)),
    "page_down": Case(then=moves("cursor"), first=("g",)),
    "page_up": Case(then=moves("cursor"), first=("G",)),
    "top": Case(then=lambda s: s.app.board.tasks.current == "rent"),
    "bottom": Case(then=lambda s: s.app.board.tasks.current == "push"),
    "pane_next": Case(then=moves("focus")),
    "pane_previous": Case(then=moves("focus")),
    "left": Case(then=moves("focus"), first=("tab",)),
    "right": Case(then=moves("focus")),
    "open": Case(then=lambda s: s.at("task")),
    "filter": Case(then=lambda s: bool(s.app.board.filter.display)),
    "trouble": Case(then=moves("trouble")),
    "cursor_follow": Case(then=moves("goes along"), first=("k",)),
    "fold": Case(then=lambda s: s.says("no family")),
    "log": Case(then=lambda s: s.at("log")),
    "follow": Case(then=moves("follow")),
    "stream": Case(then=moves("stream")),
    "match_next": Case(then=moves("found"), place="log", first=("/", "1", "9", "enter")),
    "match_previous": Case(then=moves("found"), place="log", first=("/", "1", "9", "enter")),
    "matching": Case(then=moves("only"), place="log", first=("/", "1", "9", "enter")),
    "attempt_before": Case(then=moves("attempt"), place="log"),
    "attempt_after": Case(then=moves("attempt"), place="log", first=("[",)),
    "copy": Case(then=lambda s: s.app.clipboard == "runbook logs train -f"),
    "deeds": Case(then=lambda s: s.front(DeedsScreen)),
    "copy_output": Case(then=lambda s: "tok/s" in s.app.clipboard),
    "push": Case(then=asks, place="handoff"),
    "brief": Case(then=lambda s: s.at("handoff")),
    "palette": Case(then=lambda s: s.front(CommandPalette)),
    "help": Case(then=lambda s: s.front(HelpScreen)),
    "back": Case(then=lambda s: s.at("board"), place="task"),
    "quit": Case(then=lambda s: s.at("board"), place="hosts"),
    **{
        f"place_{place.id}": Case(
            then=lambda s, name=place.id: s.at(name),  # type: ignore[misc]
            place="board" if place.id != "board" else "task",
        )
        for place in PLACES
    },
}


def test_every_key_has_its_case() -> None:
    assert set(CASES) == set(BY_ID)


async def home(app: RunbookApp, pilot: Pilot[int], task: str) -> None:
    """Back to the board from wherever a case led, with the cursor on a task."""
    while not isinstance(app.screen, PlaceScreen):
        screen = app.screen
        await pilot.press("escape")
        await wait_until(lambda screen=screen: app.screen is not screen, "the page to close")
    app.voice.hush()
    app.deeds = Deeds()
    app.ways.go_back()
    await wait_until(lambda: app.screen is app.board, "the board")
    if app.board.trouble:
        app.board.action_trouble()
    app.board.go_to(task)
    app.board.log_view.set_follow(True)
    await wait_until(lambda: app.board.tasks.current == task, task)
    await pilot.pause()


async def prepare(app: RunbookApp, pilot: Pilot[int], case: Case) -> None:
    await home(app, pilot, case.task)
    if case.place != "board":
        app.ways.go(case.place)
        await wait_until(lambda: case.place == app.place.PLACE and app.place.ready, case.place)
        await wait_until(lambda: app.focused is not None, "the focus")
        await pilot.pause()
    if isinstance(app.screen, LogScreen):
        screen = app.screen
        screen.attempt = ""
        screen.draw()
        await wait_until(lambda: screen.log_view.file.line_count > 0, "the log")
    for key in case.first:
        await pilot.press(key)
    await pilot.pause()


SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
async def test_every_key_does_its_work(make_app: MakeApp, world: World, share: int) -> None:
    world.write_log("train", "out", b"step 19 of the attempt before\n", attempt="train-1")
    app = make_app()
    async with driven(app) as pilot:
        app.suspend_for = lambda command, _words: app.voice.tell(  # type: ignore[method-assign]
            f"shell on {command.split()[-1]}"
        )
        for name in sorted(CASES)[share::SHARES]:
            case = CASES[name]
            for key in BY_ID[name].names:
                await prepare(app, pilot, case)
                scene = Scene(
                    app=app, world=world, before={**state(app), "calls": len(world.calls)}
                )
                await pilot.press(key)
                await wait_until(
                    lambda case=case, scene=scene: case.then(scene), f"what {name} ({key}) does"
                )
                if name == "retry":
                    world.move("smoke", "failed")
                if name in ("run", "until", "only"):
                    await wait_until(lambda: not app.bridge.engine_runs, "the run's end")
                    app.ears.result = None
                # What an answer says must not come over what the next key says.
                await wait_until(lambda: not app.bridge.busy, "the answer")
