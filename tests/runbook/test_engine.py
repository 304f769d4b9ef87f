"""The engine against real jobs on this machine: order, evidence, refusals, people's decisions."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from runbook.engine import finish, hosts, runner
from runbook.engine.events import Problem, TaskMoved
from runbook.engine.runner import RACES_IN_A_ROW
from runbook.errors import RunbookError
from runbook.service import Service
from state import AttemptState, FailureClass, LeaseHeld, StateMoved, TaskState
from tests.support.deadline import wait_for
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote import Host
    from state import Snapshot

CHAIN = """\
  first:
    title: First
    phase: one
    step: shell
    with: {sh: "echo one >> ${host.work}/starts; echo hello"}
    done_when: [{file: {path: "${host.work}/starts"}}]
  second:
    title: Second
    phase: one
    needs: [first]
    step: shell
    with: {sh: "echo two >> ${host.work}/starts; echo '{\\"answer\\": 42}' > $RUNBOOK_OUT"}
"""


def test_a_chain_runs_once_and_leaves_evidence(tmp_path: Path) -> None:
    with make(tmp_path, CHAIN) as service:
        assert service.run().outcome == "done"
        assert states(service) == {"first": "done", "second": "done"}
        snapshot = service.snapshot()
        assert snapshot.task("second").out == {"answer": 42}
        (check,) = snapshot.checks_of("first")
        assert check.verdict == "pass"
        path = service.log_path("first")
        assert path is not None
        assert path.read_text() == "hello\n"
        again = service.run()
        assert (again.outcome, again.started) == ("done", ())
    assert (tmp_path / "work" / "starts").read_text() == "one\ntwo\n"


def test_progress_md_is_the_rendering_of_the_last_revision(tmp_path: Path) -> None:
    with make(tmp_path, CHAIN) as service:
        service.run()
        assert service.progress_is_current()
        service.note("look at the second one", task="second")
        assert service.progress_is_current()
        assert "look at the second one" in (tmp_path / "PROGRESS.md").read_text()


def test_an_edit_in_the_managed_part_becomes_a_note(tmp_path: Path) -> None:
    with make(tmp_path, CHAIN) as service:
        path = tmp_path / "PROGRESS.md"
        path.write_text(path.read_text().replace("First", "First, said the operator", 1))
        service.write_progress()
        assert any("said the operator" in note.text for note in service.snapshot().notes)
        assert service.progress_is_current()


def test_a_failed_check_fails_the_task_though_the_command_ended_well(tmp_path: Path) -> None:
    tasks = """\
  make:
    title: Make
    phase: one
    step: shell
    with: {argv: ["true"]}
    done_when: [{file: {path: "${host.work}/never-made"}}]
    retry: {max: 3, on: [exit]}
  after:
    title: After
    phase: one
    needs: [make]
    step: shell
    with: {argv: ["true"]}
"""
    with make(tmp_path, tasks) as service:
        result = service.run()
        assert result.outcome == "failed"
        assert "never-made" in result.reason
        snapshot = service.snapshot()
        (attempt,) = snapshot.attempts_of("make")
        assert (attempt.state, attempt.cls) == (
            AttemptState.CHECK_FAILED,
            FailureClass.CHECK_FAILED,
        )
        assert snapshot.task("after").state is TaskState.BLOCKED


def test_a_check_without_an_answer_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it is done; a person decides, and the evidence is there."""
    tasks = """\
  slow:
    title: Its check takes too long, until there is a file
    phase: one
    step: shell
    with: {argv: ["true"]}
    done_when:
      - command: {argv: [sh, -c, "test -e ${host.work}/quick || sleep 30"], timeout_s: 1}
"""
    with make(tmp_path, tasks) as service:
        monkeypatch.setattr(finish, "CHECK_TRIES", 2)
        result = service.run()
        assert result.outcome == "attention"
        assert "check unknown: command" in result.reason
        (check,) = service.snapshot().checks_of("slow")
        assert check.verdict == "unknown"
        (tmp_path / "work" / "quick").touch()
        monkeypatch.setattr(finish, "CHECK_TRIES", 100)  # a second may be short on a busy machine
        service.supersede("slow", reason="the disk is quick again")
        assert service.run().outcome == "done"


def test_a_failing_command_is_retried_as_often_as_its_policy_says(tmp_path: Path) -> None:
    tasks = """\
  flaky:
    title: Flaky
    phase: one
    step: shell
    with: {sh: "echo x >> ${host.work}/tries; test $(wc -l < ${host.work}/tries) -ge 3"}
    retry: {max: 2, on: [exit]}
"""
    with make(tmp_path, tasks) as service:
        assert service.run().outcome == "done"
        attempts = service.snapshot().attempts_of("flaky")
        assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert (tmp_path / "work" / "tries").read_text() == "x\nx\nx\n"


def test_an_interrupted_run_leaves_the_job_and_the_next_one_adopts_it(tmp_path: Path) -> None:
    tasks = """\
  long:
    title: Long
    phase: one
    step: shell
    with:
      sh: "echo x >> ${host.work}/starts; while ! test -e ${host.work}/go; do sleep 0.05; done"
"""
    with make(tmp_path, tasks) as service:
        leave = threading.Event()

        def listen(event: object) -> None:
            if isinstance(event, TaskMoved) and event.state == "active":
                leave.set()

        assert service.run(stop_event=leave, listen=listen).outcome == "interrupted"
        wait_for((tmp_path / "work" / "starts").exists, what="the job to start")
        assert states(service) == {"long": "active"}
        (tmp_path / "work" / "go").touch()
        assert service.run().outcome == "done"
        assert len(service.snapshot().attempts_of("long")) == 1
    assert (tmp_path / "work" / "starts").read_text() == "x\n"


def test_a_taken_port_is_named_and_the_run_goes_on_once_it_is_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        tasks = f"""\
  needs-port:
    title: Needs a port
    phase: one
    step: shell
    with: {{argv: ["true"]}}
    resources: {{ports: [{port}]}}
"""
        said: list[Problem] = []
        with make(tmp_path, tasks) as service:
            result = service.run(
                listen=lambda event: said.append(event) if isinstance(event, Problem) else None
            )
            assert result.outcome == "blocked"
            assert f"port {port} is taken" in said[0].text
            assert states(service) == {"needs-port": "ready"}
            taken.close()
            assert service.run().outcome == "done"


def test_a_gate_waits_for_a_person(tmp_path: Path) -> None:
    tasks = """\
  rent:
    title: Rent the box
    phase: one
    step: manual
    with: {ask: "Is it rented?"}
  release:
    title: Release
    phase: one
    needs: [rent]
    step: shell
    gate: {ask: "Publish?"}
    with: {argv: ["true"]}
"""
    with make(tmp_path, tasks) as service:
        assert service.run().outcome == "gate"
        assert states(service) == {"rent": "gated", "release": "blocked"}
        service.approve("rent", "4 H200")
        assert states(service) == {"rent": "done", "release": "ready"}
        assert service.run().outcome == "gate"
        service.approve("release", "numbers checked")
        assert service.run().outcome == "done"
        with pytest.raises(RunbookError, match="Cannot approve `release`: it is done"):
            service.approve("release", "twice")


def test_only_one_engine_advances_the_graph(tmp_path: Path) -> None:
    with make(tmp_path, CHAIN) as service, make(tmp_path, CHAIN) as other:
        lease = service.store.acquire("engine", "somebody")
        assert other.view().engine == "somebody"
        with pytest.raises(LeaseHeld, match="somebody"):
            other.run()
        service.store.release(lease)
        assert other.view().engine is None
        assert other.run().outcome == "done"


def test_whoever_waits_sees_what_an_engine_did_last_before_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the task and leaves after the waiter has read the graph, before it looks for it."""
    leaves: list[Callable[[], object]] = []
    holder = Service.engine_holder

    def look(self: Service, snapshot: Snapshot) -> str | None:
        while leaves:
            leaves.pop(0)()
        return holder(self, snapshot)

    with make(tmp_path, CHAIN) as service, Service.open(tmp_path) as engine:
        for wanted in ("first", None):
            lease = engine.store.acquire("engine", "somebody")
            task = wanted or "second"
            leaves += [partial(engine.skip, task, "x"), partial(engine.store.release, lease)]
            monkeypatch.setattr(Service, "engine_holder", look)
            view, ended = service.wait(wanted, timeout_s=60)
            assert (ended, view.snapshot.task(task).state) == (True, TaskState.SKIPPED)


def test_deleted_results_are_found_by_verify_and_made_again(tmp_path: Path) -> None:
    with make(tmp_path, CHAIN) as service:
        service.run()
        (tmp_path / "work" / "starts").unlink()
        found = service.verify().tasks
        assert found["first"][0]["verdict"] == "fail"
        assert states(service) == {"first": "stale", "second": "done"}
        service.retry("first")
        assert service.run().started == ("first",)
    assert (tmp_path / "work" / "starts").read_text() == "one\n"


def test_stop_ends_every_process_and_the_task_says_who_stopped_it(tmp_path: Path) -> None:
    tasks = """\
  long:
    title: Long
    phase: one
    step: shell
    with: {sh: "setsid sleep 1000 & echo $! > ${host.work}/child; sleep 1000"}
"""
    with make(tmp_path, tasks) as service:
        runner = threading.Thread(target=_run_elsewhere, args=(tmp_path,))
        runner.start()
        child = tmp_path / "work" / "child"
        wait_for(lambda: child.exists() and child.read_text().strip(), what="the job's child")
        wait_for(lambda: states(service)["long"] == "active", what="the task to be active")
        assert "verified" in service.stop("long")
        runner.join(timeout=60)
        assert not runner.is_alive()
        task = service.snapshot().task("long")
        assert (task.state, task.reason) == (TaskState.GATED, "stopped by tester")
        attempt = service.snapshot().latest_attempt("long")
        assert attempt is not None
        assert (attempt.state, attempt.cls) == (AttemptState.STOPPED, FailureClass.STOPPED)
        result = service.run()  # nobody failed: it waits for a person, and is not run again unasked
        assert (result.outcome, result.started) == ("gate", ())
        assert service.view().next.command == "runbook retry long"
        assert service.retry("long").state is TaskState.READY
    assert not _alive(int(child.read_text()))


def test_a_job_that_is_seen_to_run_while_somebody_stops_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look of whoever stops it and their word, whoever runs it has looked as well."""
    task = "  long: {title: Long, phase: one, step: shell, with: {argv: [sleep, '300']}}\n"
    meanwhile: list[Callable[[], object]] = []
    of_role = hosts.Hosts.of_role

    def reached(self: hosts.Hosts, snapshot: Snapshot, role: str) -> Host:
        while meanwhile:
            meanwhile.pop()()
        return of_role(self, snapshot, role)

    with make(tmp_path, task) as service, Service.open(tmp_path) as other:
        left = threading.Event()
        service.run(stop_event=left, listen=lambda _: left.set())
        (attempt,) = service.snapshot().attempts_of("long")
        assert attempt.state is AttemptState.INTENDED
        meanwhile.append(other.reconcile)
        monkeypatch.setattr(hosts.Hosts, "of_role", reached)
        assert "verified" in service.stop("long")
        assert states(service) == {"long": "gated"}


def test_a_job_whose_supervisor_was_killed_is_lost_until_somebody_decides(tmp_path: Path) -> None:
    with make(tmp_path, KILLED) as service:
        result = service.run()
        assert result.outcome == "attention"
        (attempt,) = service.snapshot().attempts_of("doomed")
        assert attempt.cls is FailureClass.LOST_SUPERVISOR_DIED
        service.supersede("doomed", reason="swept")
        assert states(service)["doomed"] == "ready"


def test_a_lost_job_is_swept_and_repeated_where_the_policy_says_so(tmp_path: Path) -> None:
    policy = "    retry: {max: 1, on: [lost_supervisor_died]}\n"
    with make(tmp_path, KILLED + policy) as service:
        assert service.run().outcome == "done"
        assert len(service.snapshot().attempts_of("doomed")) == 2


def test_lost_races_are_looked_at_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb of somebody else was quicker, again and again; then the engine gives up aloud."""
    races = [RACES_IN_A_ROW - 1]

    def observe(_world: object, _snapshot: object) -> None:
        races[0] -= 1
        if races[0] >= 0:
            raise StateMoved("task", "a", "ready", "active", ["blocked"])

    monkeypatch.setattr(runner, "observe", observe)
    with make(tmp_path, CHAIN) as service:
        engine = runner.Engine(service._world())
        monkeypatch.setattr(runner.Engine, "start_ready", lambda _self: None)
        rounds = [engine.round() for _ in range(RACES_IN_A_ROW - 1)]
        assert rounds == [False] * (RACES_IN_A_ROW - 1)
        engine.round()
        races[0] = RACES_IN_A_ROW
        for _ in range(RACES_IN_A_ROW - 1):
            engine.round()
        with pytest.raises(StateMoved):
            engine.round()


KILLED = """\
  doomed:
    title: Its supervisor is killed, once
    phase: one
    step: shell
    with: {sh: "test -e ${host.work}/once || { touch ${host.work}/once; kill -9 $PPID; sleep 60; }"}
"""


def _run_elsewhere(folder: Path) -> None:
    with Service.open(folder) as service:
        service.run()


def _alive(pid: int) -> bool:
    from pathlib import Path

    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_an_end_that_is_seen_while_somebody_stops_it_is_theirs(tmp_path: Path) -> None:
    """The host was asked, a task beside the loop stopped it meanwhile, and then the answer came."""
    task = """\
  long:
    title: Long
    phase: one
    step: shell
    with: {argv: [sleep, "300"]}
"""
    with make(tmp_path, task) as service:
        left = threading.Event()
        service.run(stop_event=left, listen=lambda _: left.set())
        service.stop("long")
        (attempt,) = service.snapshot().attempts_of("long")
        world = service._world()
        finish.finish(world, "long", attempt.id, cls=FailureClass.OK, out={}, evidence={})
        assert service.snapshot().attempts_of("long")[0].state is AttemptState.STOPPED
        assert states(service) == {"long": "gated"}
