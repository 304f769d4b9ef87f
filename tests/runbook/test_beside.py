"""What the engine does beside its loop: long checks, uploads, stalls, pauses; and being killed."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from runbook.engine import observe, stall
from runbook.engine.events import Info, Problem, TaskMoved
from runbook.retries import backoff_s, retry_reason
from state import AttemptState, FailureClass, TaskState
from tests.support.deadline import wait_for
from tests.support.workspaces import command, make, states

if TYPE_CHECKING:
    from pathlib import Path

    from remote import JobStatus

CHECKED = """\
  checked:
    title: Its check waits for the other task
    phase: one
    step: shell
    with: {argv: ["true"]}
    done_when:
      - command:
          argv:
            - sh
            - -c
            - "echo x >> ${host.work}/looks; while ! test -e ${host.work}/go; do sleep 0.05; done"
          timeout_s: 60
"""
OTHERS = """\
  other:
    title: Ends once the check is being asked
    phase: one
    step: shell
    with: {sh: "while ! test -e ${host.work}/looks; do sleep 0.05; done"}
  third:
    title: Ends the check
    phase: one
    needs: [other]
    step: shell
    with: {sh: "touch ${host.work}/go"}
"""


def test_a_long_check_does_not_keep_others_waiting(tmp_path: Path) -> None:
    # Were it asked in the loop, nobody would start `third`, and the check time out.
    with make(tmp_path, CHECKED + OTHERS) as service:
        moved: list[tuple[str, str]] = []

        def listen(event: object) -> None:
            if isinstance(event, TaskMoved):
                moved.append((event.task, event.state))

        assert service.run(listen=listen).outcome == "done"
        assert moved.index(("third", "active")) < moved.index(("checked", "done"))
    assert (tmp_path / "work" / "looks").read_text() == "x\n", "asked once, not once a round"


def test_killed_in_the_middle_of_a_check_it_is_asked_again(tmp_path: Path) -> None:
    with make(tmp_path, CHECKED) as service:
        looks = tmp_path / "work" / "looks"
        engine = subprocess.Popen(command(tmp_path, "run"), stdout=subprocess.DEVNULL)
        wait_for(looks.exists, what="the check to be asked")
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        assert states(service) == {"checked": "verifying"}
        (tmp_path / "work" / "go").touch()
        assert service.run().outcome == "done"
        (attempt,) = service.snapshot().attempts_of("checked")
        assert attempt.state is AttemptState.VERIFIED
    assert looks.read_text() == "x\nx\n"


def test_a_copy_that_cannot_be_kept_ends_the_run_and_the_next_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output is copied beside the loop: it must hear of that, and not wait for ever."""
    task = '  says: {title: Says, phase: one, step: shell, with: {sh: "echo something"}}\n'

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with make(tmp_path, task) as service:
        with monkeypatch.context() as patch:
            patch.setattr(observe, "mirror", full)
            with pytest.raises(OSError, match="No space"):
                service.run()
        assert service.run().outcome == "done"
        log = service.log_path("says")
        assert log is not None
        assert log.read_text() == "something\n"


STALLING = """\
  stalling:
    title: Reports once, and never again
    phase: one
    step: shell
    with:
      sh: 'echo "{\\"v\\": 1, \\"done\\": 3}" >> $RUNBOOK_PROGRESS; sleep 600'
    stall: {metric: done, for: 300ms, action: ACTION}
"""


class Rounds:
    """The clock by which a stall is judged: a second for each look since the job has reported.

    How long a job takes until it reports, on a busy machine, is no stall.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen, self.enough = 0.0, threading.Event()
        self._measured = stall.measured
        monkeypatch.setattr(stall, "measured", self.measured)
        monkeypatch.setattr(stall, "time", SimpleNamespace(monotonic=lambda: self.seen))

    def measured(self, status: JobStatus, metric: str) -> object:
        found = self._measured(status, metric)
        self.seen += found is not None
        if self.seen == 5:
            self.enough.set()
        return found


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    return Rounds(monkeypatch)


def test_a_job_that_stands_still_is_told_once(tmp_path: Path, rounds: Rounds) -> None:
    said: list[Problem] = []
    with make(tmp_path, STALLING.replace("ACTION", "warn")) as service:

        def listen(event: object) -> None:
            if isinstance(event, Problem):
                said.append(event)

        service.run(stop_event=rounds.enough, listen=listen)
        assert states(service) == {"stalling": "active"}, "a warning stops nothing"
        service.stop("stalling")
    assert len(said) == 1
    assert "stalled: it stays 3 (done) for" in said[0].text
    assert "runbook stop stalling" in said[0].hint


@pytest.mark.usefixtures("rounds")
def test_a_job_that_stands_still_is_stopped_and_tried_again_where_it_says_so(
    tmp_path: Path,
) -> None:
    tasks = STALLING.replace("ACTION", "stop") + "    retry: {max: 1, on: [time_limit]}\n"
    with make(tmp_path, tasks) as service:
        result = service.run()
        assert result.outcome == "failed"
        assert "stalled: it stays 3" in result.reason
        attempts = service.snapshot().attempts_of("stalling")
        assert [(a.state, a.cls) for a in attempts] == [
            (AttemptState.STOPPED, FailureClass.TIME_LIMIT)
        ] * 2


def test_a_retry_may_name_one_exit_code_and_waits_for_its_pause(tmp_path: Path) -> None:
    tasks = """\
  busy:
    title: Busy once
    phase: one
    step: shell
    with: {sh: "echo x >> ${host.work}/tries; test $(wc -l < ${host.work}/tries) -ge 2 || exit 75"}
    retry: {max: 3, on: ["exit(75)"], backoff: 1s}
  broken:
    title: Broken for good
    phase: one
    step: shell
    with: {sh: "exit 3"}
    retry: {max: 3, on: ["exit(75)"]}
"""
    said: list[str] = []
    with make(tmp_path, tasks) as service:
        service.run(listen=lambda e: said.append(e.text) if isinstance(e, Info) else None)
        snapshot = service.snapshot()
        assert states(service) == {"busy": "done", "broken": "failed"}
        first, second = snapshot.attempts_of("busy")
        assert len(snapshot.attempts_of("broken")) == 1
        assert "busy: retry 1 of 3 after exit(75), after a pause of 1 s" in said
        assert first.ended_at is not None
        assert second.created_at > first.ended_at
        assert _seconds(first.ended_at, second.created_at) >= 0.9


def _seconds(begun: str, ended: str) -> float:
    from datetime import datetime

    return (datetime.fromisoformat(ended) - datetime.fromisoformat(begun)).total_seconds()


def test_pauses_double_up_to_an_hour() -> None:
    assert [backoff_s({"backoff_s": 30}, n) for n in (1, 2, 3, 12)] == [30, 60, 120, 3600]
    assert backoff_s({}, 5) == 0.0
    assert backoff_s({"backoff_s": 7200}, 3) == 7200, "what was asked for is not cut"


def test_memory_and_failed_checks_are_never_tried_again_unchanged(tmp_path: Path) -> None:
    tasks = """\
  a:
    title: A
    phase: one
    step: shell
    with: {argv: ["false"]}
    retry: {max: 9, on: [exit, signal, "signal(9)", lost_reboot]}
"""
    with make(tmp_path, tasks) as service:
        service.run(stop_event=_at_once())
        with service.store.write() as tx:
            attempt = tx.latest_attempt("a") or tx.create_attempt("a", host="box", epoch=None)
        task = service.snapshot().task("a")
        for cls in (FailureClass.OOM, FailureClass.CHECK_FAILED, FailureClass.STOPPED):
            assert retry_reason(task, attempt, cls) is None
        assert retry_reason(task, attempt, FailureClass.LOST_REBOOT) is not None


def _at_once() -> threading.Event:
    leave = threading.Event()
    leave.set()
    return leave


BUDGET = """\
  dear:
    title: Too dear
    phase: one
    step: shell
    with: {argv: ["true"]}
    estimate: 17h
    budget: {hours: 1}
"""


def test_what_is_over_budget_waits_for_a_yes_with_a_reason(tmp_path: Path) -> None:
    with make(tmp_path, BUDGET) as service:
        result = service.run()
        assert result.outcome == "budget"
        assert "dear over budget: it needs about 17 h (stated); its budget is 1 h" in result.reason
        assert states(service) == {"dear": "gated"}
    refused = subprocess.run(
        command(tmp_path, "gate", "approve", "dear"), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 9
    assert "needs a reason" in refused.stderr
    said = command(tmp_path, "gate", "approve", "dear", "--reason", "it is worth it")
    subprocess.run(said, check=True, capture_output=True)
    with make(tmp_path, BUDGET) as service:
        assert service.run().outcome == "done"
        (yes,) = service.snapshot().approvals
        assert (yes.about, "worth it" in yes.reason) == ("budget", True)


def test_a_family_runs_within_its_limits_and_join_waits_for_all(tmp_path: Path) -> None:
    head = """\
version: 1
name: small
title: A small runbook
hosts: {box: {}}
phases: {one: One}
defaults: {host: box}
limits: {global: 2}
tasks:
"""
    tasks = """\
  make:
    for_each: {i: 3}
    title: Make ${each.i}
    phase: one
    step: shell
    with:
      sh: "echo $RUNBOOK_TASK >> ${host.work}/made; echo '{\\"n\\": ${each.i}}' > $RUNBOOK_OUT"
  join:
    title: Join
    phase: one
    needs: [make]
    step: shell
    with: {argv: [echo, "${task.make[2].out.n}"]}
"""
    most = [0]
    with make(tmp_path, tasks, head=head) as service:

        def listen(_event: object) -> None:
            live = [t for t in service.snapshot().tasks if t.state is TaskState.ACTIVE]
            most[0] = max(most[0], len(live))

        assert service.run(listen=listen).outcome == "done"
        assert most[0] <= 2
        path = service.log_path("join")
        assert path is not None
        assert path.read_text() == "2\n"
    made = (tmp_path / "work" / "made").read_text().split()
    assert sorted(made) == ["make.0", "make.1", "make.2"]
    answer = subprocess.run(
        [*command(tmp_path, "status", "--json")[:3], "status", "--json", "-w", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(answer.stdout)["data"]["tasks"]
    assert [(row["id"], row["family"]) for row in rows][:1] == [("make[0]", "make")]
