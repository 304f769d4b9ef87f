"""The thread crossing: every fact arrives, every error is told, and nothing keeps the terminal."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from runbook.engine.events import Listener, LogGrew
from runbook.tui.bridge import Bridge, Broke, Carried, Looked, RunEnded, Seen, Told
from runbook.views import RunResult
from tests.support.fake_service import FakeService, World, broken, one_task_run
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pytest


def bridge_on(world: World) -> Bridge:
    return Bridge(world.open, crash_file=world.folder / "crash.log")


async def told_until(bridge: Bridge, kind: type[object]) -> list[Told]:
    facts: list[Told] = []

    def came() -> bool:
        facts.extend(bridge.drain())
        return any(isinstance(fact, kind) for fact in facts)

    await wait_until(came, kind.__name__)
    return facts


async def test_facts_come_in_order_and_the_end_comes_last(world: World) -> None:
    world.script = one_task_run("eval", steps=500)
    bridge = bridge_on(world)
    assert bridge.start_engine()
    facts = await told_until(bridge, RunEnded)
    progress = [fact.progress["done"] for fact in facts if hasattr(fact, "progress")]
    assert progress == list(range(1, 501))
    assert isinstance(facts[-1], RunEnded)
    bridge.close()


async def test_a_flood_is_taken_home_in_bounded_handfuls(world: World) -> None:
    def script(_world: World, _stop: threading.Event, listen: Listener) -> RunResult:
        for n in range(20_000):
            listen(LogGrew(task="t", attempt="a", stream="out", path=Path("x"), size=n))
        return RunResult(outcome="done", reason="")

    world.script = script
    bridge = bridge_on(world)
    bridge.start_engine()
    await wait_until(lambda: not bridge.engine_runs, "the flood")
    assert len(bridge.drain(most=100)) == 100
    assert sum(len(bridge.drain()) for _ in range(10)) == 20_001 - 100
    bridge.close()


async def test_a_known_error_is_told_with_its_next_step(world: World) -> None:
    world.error = broken()
    bridge = bridge_on(world)
    bridge.ask("runbook retry train", lambda service: service.retry("train"))
    (fact,) = await told_until(bridge, Broke)
    assert isinstance(fact, Broke)
    assert fact.hint == "runbook stop train"
    assert not (world.folder / "crash.log").exists()
    world.error = None
    bridge.ask("runbook retry smoke", lambda service: service.retry("smoke"))
    (done,) = await told_until(bridge, Carried)
    assert isinstance(done, Carried)
    assert not bridge.busy
    bridge.close()


async def test_a_bug_goes_to_a_file_and_the_hands_go_on(world: World) -> None:
    bridge = bridge_on(world)
    bridge.ask("x", lambda _service: 1 / 0)
    (fact,) = await told_until(bridge, Broke)
    assert isinstance(fact, Broke)
    assert "crash.log" in fact.hint
    assert "ZeroDivisionError" in (world.folder / "crash.log").read_text()
    bridge.ask("runbook retry smoke", lambda service: service.retry("smoke"))
    await told_until(bridge, Carried)
    bridge.close()


async def test_a_workspace_that_cannot_be_opened_is_told(world: World) -> None:
    def opener() -> FakeService:
        raise broken()

    bridge = Bridge(opener, crash_file=world.folder / "none" / "crash.log")
    bridge.start_engine()
    facts = await told_until(bridge, Broke)
    assert isinstance(facts[0], Broke)
    assert facts[0].source == "engine"
    bridge.ask("x", lambda service: service.retry("train"))
    await told_until(bridge, Broke)
    bridge.close()


async def test_an_engine_that_hangs_does_not_keep_the_terminal(world: World) -> None:
    release = threading.Event()

    def script(*_: object) -> RunResult:
        release.wait(60)
        return RunResult(outcome="done", reason="")

    world.script = script
    bridge = bridge_on(world)
    bridge.start_engine()
    await wait_until(lambda: bool(world.calls), "the run")
    bridge.close(seconds=0.2)
    assert bridge.engine_runs, "its end was not waited for"
    release.set()
    await wait_until(lambda: not bridge.engine_runs, "the engine")


async def test_a_run_is_over_once_its_end_was_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its thread may still be on its way out, `q` has nothing to ask then."""
    bridge, leaves = bridge_on(world), threading.Event()
    tell = bridge._inbox.put

    def slowly(fact: Told) -> None:
        tell(fact)
        leaves.wait(60)

    monkeypatch.setattr(bridge, "_inbox", SimpleNamespace(
        put=slowly, get_nowait=bridge._inbox.get_nowait
    ))  # fmt: skip
    try:
        assert bridge.start_engine()
        await told_until(bridge, RunEnded)
        assert not bridge.engine_runs
    finally:
        leaves.set()
        bridge.close()


async def test_a_look_at_a_host_that_hangs_holds_no_fact_back(world: World) -> None:
    bridge, hangs = bridge_on(world), threading.Event()
    try:
        bridge.watch()
        bridge.look("checkpoints", lambda _service: hangs.wait(30), lambda _answer: None)
        facts = await told_until(bridge, Seen)
        seen = next(fact for fact in facts if isinstance(fact, Seen)).view.snapshot.revision
        world.change()
        newer: list[Told] = []

        def came() -> bool:
            newer.extend(bridge.drain())
            return any(
                isinstance(fact, Seen) and fact.view.snapshot.revision > seen for fact in newer
            )

        await wait_until(came, "what another client wrote")
        assert not any(isinstance(fact, Looked) for fact in newer)
        hangs.set()
        await told_until(bridge, Looked)
    finally:
        hangs.set()
        bridge.close()
