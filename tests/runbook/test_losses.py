"""A lost attempt is tried again by its policy, whoever found the loss; but never beside a rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote import Host, StopReport, Unreachable
from runbook.engine import runner
from runbook.engine.events import Problem
from runbook.engine.stopping import stop_attempt
from runbook.plan import load_text
from runbook.service import Service
from state import AttemptState, FailureClass, TaskState
from tests.support.deadline import wait_for
from tests.support.workspaces import HEAD, cli, left_running, make, parent_of, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TASKS = """\
  doomed:
    title: Lost, when its supervisor is killed
    phase: one
    step: shell
    with:
      sh: "cd ${host.work}; test -e pid && exit; echo $$ > pid; exec sleep 300"
    retry: {max: 1, on: [lost_supervisor_died, time_limit]}
"""
AGAIN = "retry 1 of 1 after lost_supervisor_died"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A look that starts nothing found that its attempt is lost; its process lives on."""
    with make(tmp_path, TASKS) as service:
        pid = left_running(service, tmp_path)
        os.kill(parent_of(pid), signal.SIGKILL)

        def lost() -> bool:
            service.reconcile()
            return states(service)["doomed"] == "attention"

        wait_for(lost, what="the loss to be seen")
        yield service
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # a zombie has none
    except FileNotFoundError:
        return False


def beside(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], Any]) -> None:
    """Does something while the lost attempt is being swept, or in its place."""
    stop = Host.stop

    def stopped(self: Host, attempt: str, **how: Any) -> StopReport:
        found = deed()
        return found if isinstance(found, StopReport) else stop(self, attempt, **how)

    monkeypatch.setattr(Host, "stop", stopped)


def test_a_loss_that_a_look_found_is_swept_and_tried_again(
    service: Service, tmp_path: Path
) -> None:
    pid = int((tmp_path / "work" / "pid").read_text())
    assert lives(pid), "a look stops nothing"
    step = service.view().next
    assert (step.command, step.person) == ("runbook run", False)
    assert f"sweeps it, then tries again ({AGAIN})" in cli(tmp_path, "reconcile").stdout
    assert service.run().outcome == "done"
    first, second = service.snapshot().attempts_of("doomed")
    assert (first.state.value, second.state.value) == ("lost", "verified")
    assert not lives(pid), "nothing of the first ran beside the second"
    moved = [e.payload for e in service.events(task="doomed", limit=-1) if e.kind == "task.moved"]
    assert AGAIN in [one.get("reason") for one in moved]


def test_an_engine_that_was_killed_before_it_had_swept_is_made_good(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [True]

    def cut() -> None:
        if silent.pop():
            silent.append(False)
            raise Unreachable("the link was cut")

    beside(monkeypatch, cut)
    told: list[str] = []
    result = service.run(listen=lambda e: told.append(e.text) if isinstance(e, Problem) else None)
    assert result.outcome == "done", "it waits for a silent host, as for any"
    assert told == ["the link was cut"]
    assert service.snapshot().host("box").unreachable_since is None


def test_a_stop_of_a_killed_engine_counts_as_what_it_was_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that stood still is stopped, and tried again by its policy, also by the next engine."""

    def cut() -> None:
        raise Unreachable("the engine was killed here")

    with make(tmp_path, TASKS) as service:
        left_running(service, tmp_path)
        task, attempt = service.snapshot().task("doomed"), service.snapshot().attempts[0]
        host = service._hosts.of_role(service.snapshot(), "box")
        how = {"then": TaskState.FAILED, "reason": "stalled", "cls": FailureClass.TIME_LIMIT}
        with monkeypatch.context() as killed:
            beside(killed, cut)
            with pytest.raises(Unreachable):
                stop_attempt(service._world(), task, attempt, host, **how)
        monkeypatch.setattr(runner, "STOP_TAKEN_OVER_S", 0.0)
        assert service.run().outcome == "done"
        first, second = service.snapshot().attempts_of("doomed")
        assert (first.cls, second.state) == (FailureClass.TIME_LIMIT, AttemptState.VERIFIED)


def test_what_is_still_there_keeps_it_from_being_tried_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = StopReport(state="stop_incomplete", survivors=({"pid": 7, "name": "x"},), evidence={})
    beside(monkeypatch, lambda: rest)
    told: list[Problem] = []
    result = service.run(listen=lambda e: told.append(e) if isinstance(e, Problem) else None)
    assert result.outcome == "attention"
    assert [one.text for one in told] == [
        "doomed: something of its lost attempt is still there: pid 7 (x)"
    ]
    assert len(service.snapshot().attempts_of("doomed")) == 1


def test_what_a_person_decides_meanwhile_holds(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def skip() -> None:
        with Service.open(tmp_path, actor="ann") as ann:
            ann.skip("doomed", "not needed")

    beside(monkeypatch, skip)
    assert service.run().outcome == "done"
    assert states(service) == {"doomed": "skipped"}


def test_a_person_decides_without_a_policy_or_on_another_machine(
    service: Service, tmp_path: Path
) -> None:
    text = HEAD + "\n".join(line for line in TASKS.splitlines() if "retry:" not in line)
    service.load(load_text(text, path=str(tmp_path / "runbook.yaml"), params={}))
    assert service.run().outcome == "attention"
    service.load(load_text(HEAD + TASKS, path=str(tmp_path / "runbook.yaml"), params={}))
    assert service.view().next.command == "runbook run"
    proof = {**service.snapshot().epochs[-1].identity, "machine_id": "another"}
    with service.store.write() as tx:
        tx.seen_host("box", epoch="another", identity=proof)
    assert service.view().next.person, "another machine cannot show that it is gone"
    assert service.run().outcome == "attention"
    assert len(service.snapshot().attempts_of("doomed")) == 1
