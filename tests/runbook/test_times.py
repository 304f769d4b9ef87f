"""How long work took: by its host, not by when somebody looked again."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from remote import JobStatus
from runbook.cli.results import took
from runbook.engine.events import TaskMoved
from runbook.engine.finish import when
from tests.support.deadline import wait_for
from tests.support.workspaces import make

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  ends:
    title: Ends when it is told to
    phase: one
    step: shell
    with: {sh: "mkdir -p ${host.work}; until test -e ${host.work}/go; do sleep 0.05; done"}
"""


def test_the_absence_of_whoever_looks_is_not_counted(tmp_path: Path) -> None:
    leave, took_s = threading.Event(), []

    def listen(event: object) -> None:
        if isinstance(event, TaskMoved) and event.state == "active":
            leave.set()
        if isinstance(event, TaskMoved) and event.state == "done":
            took_s.append(event.seconds)

    with make(tmp_path, TASKS) as service:
        service.run(stop_event=leave, listen=listen)
        wait_for((tmp_path / "work").exists, what="the job to start")
        (tmp_path / "work" / "go").touch()
        wait_for(lambda: service.copy_logs("ends").state == "exited", what="the job to end")
        back = datetime.now(UTC)
        service.run(listen=listen)
        attempt = service.snapshot().latest_attempt("ends")
        assert attempt is not None
        assert attempt.started_at
        assert attempt.ended_at
        ended = datetime.fromisoformat(attempt.ended_at)
        assert attempt.created_at <= attempt.started_at <= attempt.ended_at
        assert ended <= back, "it had ended when we came back"
        of_it = (ended - datetime.fromisoformat(attempt.created_at)).total_seconds()
        assert took_s == [of_it]
        assert took(service.snapshot(), service.snapshot().task("ends")) == round(of_it, 1)


def test_the_clock_of_the_host_is_set_against_ours(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        world, task = service._world(), service.snapshot().task("ends")
        box = service.snapshot().host("box")

        def measured(offset_s: float, error_s: float) -> None:
            clock = {**box.facts, "clock": {"offset_s": offset_s, "error_s": error_s}}
            with service.store.write() as tx:
                tx.bind_host(replace(box, facts=clock))

        measured(3600.0, 0.01)
        with service.store.write() as tx:
            attempt = tx.create_attempt("ends", host="box", epoch=None)
        attempt = replace(attempt, created_at="2026-01-01T12:00:00.000Z")

        def seen(begun: str, ended: str) -> dict[str, str]:
            status = JobStatus(
                attempt=attempt.id, state="exited",
                started_at=f"2026-01-01T{begun}Z", ended_at=f"2026-01-01T{ended}Z",
            )  # fmt: skip
            return {name: at[11:19] for name, at in when(world, task, attempt, status).items()}

        assert seen("13:00:01", "13:00:11") == {"started_at": "12:00:01", "ended_at": "12:00:11"}
        early = seen("12:00:01", "12:00:11")
        assert early == {"started_at": "12:00:00", "ended_at": "12:00:00"}, "not before it began"
        measured(-4.0, 4.5)  # of a machine whose answer took nine seconds
        ours = seen("12:00:01", "12:00:11")
        assert ours == {"started_at": "12:00:01", "ended_at": "12:00:11"}, "they may well agree"
