"""`reconcile`: one look at all that may run; nothing starts, nothing stops."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from remote import Identity
from runbook.errors import RunbookError
from tests.support.deadline import wait_for
from tests.support.workspaces import cli, left_running, make, parent_of, states

TASKS = """\
  ends:
    title: Ends when it is told to
    phase: one
    step: shell
    with: {sh: "echo $$ > ${host.work}/pid; while ! test -e ${host.work}/go; do sleep 0.05; done"}
  next:
    title: Would come next
    phase: one
    needs: [ends]
    step: shell
    with: {sh: "touch ${host.work}/next"}
"""


def test_what_ended_meanwhile_is_told_and_nothing_is_started(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        left_running(service, tmp_path)
        (seen,) = service.reconcile()
        assert seen.task == "ends"
        assert seen.found.startswith("running")
        assert seen.after == "active, running"
        service.workspace.live_file.unlink()
        service.reconcile()
        assert service.view().live["ends"].attempt == seen.attempt, "others see how old it is"
        (tmp_path / "work" / "go").touch()

        def done() -> bool:
            service.reconcile("box")
            return states(service)["ends"] == "done"

        wait_for(done, what="the end to be seen")
        assert states(service) == {"ends": "done", "next": "ready"}
        assert service.view().live == {}
        assert service.reconcile() == ()
        with pytest.raises(RunbookError, match="neither a task nor a host role"):
            service.reconcile("nothing")
        lease = service.store.acquire("engine", "another")
        with pytest.raises(RunbookError, match="looks at everything that runs"):
            service.reconcile()
        service.store.release(lease)
    assert not (tmp_path / "work" / "next").exists()


def test_a_lost_attempt_is_found_and_stays_lost(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        left_running(service, tmp_path)
        job = int((tmp_path / "work" / "pid").read_text())
        os.kill(parent_of(job), signal.SIGKILL)  # its supervisor

        def lost() -> bool:
            service.reconcile("ends")
            return states(service)["ends"] == "attention"

        wait_for(lost, what="the loss to be seen")
        answer = cli(tmp_path, "reconcile", "ends")
        assert answer.returncode == 0
        assert "still attention, lost" in answer.stdout
        service.supersede("ends", reason="swept")


def test_a_reboot_found_by_a_look_takes_what_was_done_in_memory(tmp_path: Path) -> None:
    copy = Path(f"/dev/shm/runbook-test-{tmp_path.name}")
    memory = f"""\
  memory:
    title: In memory
    phase: one
    step: shell
    with: {{sh: "echo x > {copy}"}}
    done_when: [{{file: {{path: "{copy}"}}}}]
"""
    with make(tmp_path, memory + TASKS) as service:
        service.run(only=["memory"])
        left_running(service, tmp_path)
        proof = {**service.snapshot().epochs[-1].identity, "boot_id": "another"}
        with service.store.write() as tx:
            tx.seen_host("box", epoch=Identity(**proof).epoch, identity=proof)
        service.reconcile("ends")
        assert states(service)["memory"] == "stale"
        (tmp_path / "work" / "go").touch()
    copy.unlink()


def test_a_rehearsal_asks_about_what_was_named(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        left_running(service, tmp_path)
        service.dry_run = True
        service.reconcile("next")
        assert service.would == []
        service.reconcile("ends")
        assert len(service.would) == 1
        with pytest.raises(RunbookError, match="neither a task nor a host role"):
            service.reconcile("nothing")
        service.dry_run = False
        service.stop("ends")
