"""How attempts ended, in words: exit codes, stops that came late, work of an earlier attempt."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from runbook.engine.events import TaskMoved
from runbook.reasons import TOO_LATE
from tests.support.deadline import wait_for
from tests.support.workspaces import cli, make, states

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  make:
    title: Make
    phase: one
    step: shell
    with: {sh: "echo made"}
  count:
    title: Count
    phase: one
    needs: [make]
    step: shell
    with: {sh: "echo counted"}
  breaks:
    title: Breaks
    phase: one
    step: shell
    retry: {max: 1, on: [exit]}
    with: {sh: "echo boom >&2; exit 75"}
"""


def test_an_exit_code_is_no_failed_check_and_commands_are_told_once(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        service.run()
        said = cli(tmp_path, "status", "breaks").stdout
        assert "attempt 1 on box: failed: exit code 75: boom, " in said
        assert "attempt 2 on box: failed: exit code 75: boom, " in said
        assert said.count("exit 75") == 1, "the same commands once"
        assert "check_failed" not in said

        service.retry("make", reason="anew")
        service.run(only=["make"])
        told = cli(tmp_path, "status").stdout
        assert "made from an earlier attempt of make" in told
        service.retry("count", reason="anew")
        service.run(only=["count"])
        assert "earlier attempt" not in cli(tmp_path, "status").stdout


def test_the_output_of_an_earlier_attempt_is_its_own(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        service.run(only=["make"])
        file = tmp_path / "runbook.yaml"
        file.write_text(file.read_text().replace("echo made", "echo made >&2"))
        assert cli(tmp_path, "init").returncode == 0
        service.retry("make", reason="anew")
        service.run(only=["make"])
        first, _second = service.snapshot().attempts_of("make")
        assert "made" not in cli(tmp_path, "logs", "make", "--out").stdout
        assert cli(tmp_path, "logs", "make", "--attempt", "1").stdout == "made\n"
        told = json.loads(cli(tmp_path, "logs", "make", "--attempt", "1", "--json").stdout)
        assert told["data"]["attempt"] == first.id
        silent = cli(tmp_path, "logs", "make", "--attempt", "2", "--out").stderr
        assert "Attempt 2 of `make` wrote nothing to its output" in silent
        wrong = cli(tmp_path, "logs", "make", "--attempt", "3")
        assert "`make` has no attempt 3: it had 2 so far." in wrong.stderr
        assert wrong.returncode != 0
        both = cli(tmp_path, "logs", "make", "--attempt", "1", "-f")
        assert (both.returncode, "not both" in both.stderr) == (2, True)

        # Never copied here, as where the state came from another machine: its host has it.
        service.workspace.log(first.id, "out").unlink()
        service.workspace.log(first.id, "err").unlink(missing_ok=True)
        assert cli(tmp_path, "logs", "make", "--attempt", "1").stdout == "made\n"


def test_a_probe_that_failed_is_looked_at_where_it_says_why(tmp_path: Path) -> None:
    probe = """\
  probe:
    title: Probe
    phase: one
    step: probe
    with: {min_cpus: 100000}
"""
    with make(tmp_path, probe) as service:
        service.run()
        step = service.view().next
        assert step.command == "runbook status probe"
        assert "has no log of its own" in step.reason
        assert "100000 needed" in step.said


def test_a_stop_that_came_too_late_is_told_with_the_outcome(tmp_path: Path) -> None:
    waits = """\
  ends:
    title: Ends when it is told to
    phase: one
    step: shell
    with: {sh: "mkdir -p ${host.work}; until test -e ${host.work}/go; do sleep 0.05; done"}
"""
    leave = threading.Event()

    def listen(event: object) -> None:
        if isinstance(event, TaskMoved) and event.state == "active":
            leave.set()

    with make(tmp_path, waits) as service:
        service.run(stop_event=leave, listen=listen)
        wait_for((tmp_path / "work").exists, what="the job to start")
        (tmp_path / "work" / "go").touch()
        wait_for(lambda: service.copy_logs("ends").state == "exited", what="the job to end")
        said = service.stop("ends")
        assert "had ended before the stop came: `runbook run` records its outcome" in said
        service.run()
        assert states(service) == {"ends": "done"}
        assert service.snapshot().task("ends").reason == TOO_LATE
