"""A task that an edit gives to another machine: what runs of it is where it was launched."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runbook.errors import RunbookError
from runbook.plan import load_text
from state import HostBinding
from tests.support.deadline import wait_for
from tests.support.workspaces import left_running, make, parent_of, states

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runbook.service import Service

HEAD = """\
version: 1
name: two
title: Two machines
hosts: {box: {}, bay: {}}
phases: {one: One}
tasks:
"""
TASKS = """\
  moved:
    title: Moved while it runs
    phase: one
    host: box
    step: shell
    with: {sh: "cd ${host.work}; echo $$ > pid; until test -e go; do sleep 0.05; done"}
    retry: {max: 1, on: [lost_supervisor_died]}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with make(tmp_path, TASKS, head=HEAD) as service:
        folders = {"root": str(tmp_path / "bay" / "root"), "work": str(tmp_path / "bay" / "work")}
        service.bind("bay", HostBinding(role="bay", kind="local", **folders))
        left_running(service, tmp_path)
        text = HEAD + TASKS.replace("host: box", "host: bay")
        service.load(load_text(text, path=str(tmp_path / "runbook.yaml"), params={}))
        yield service
        for work in (tmp_path / "work", tmp_path / "bay" / "work"):
            work.mkdir(parents=True, exist_ok=True)
            (work / "go").touch()


def test_it_is_followed_and_stopped_where_it_runs(service: Service, tmp_path: Path) -> None:
    (seen,) = service.reconcile("box")
    assert seen.host == "box"
    assert seen.found.startswith("running")
    with pytest.raises(RunbookError, match="moved may run on it"):
        service.forget("box")
    service.stop("moved")
    assert not Path(f"/proc/{(tmp_path / 'work' / 'pid').read_text().strip()}/exe").exists()
    assert not list(tmp_path.glob("bay/root/*/jobs/*")), "it was launched once"


def test_it_is_swept_where_it_ran_and_tried_again_where_it_belongs(
    service: Service, tmp_path: Path
) -> None:
    pid = int((tmp_path / "work" / "pid").read_text())
    os.kill(parent_of(pid), signal.SIGKILL)

    def lost() -> bool:
        service.reconcile()
        return states(service)["moved"] == "attention"

    wait_for(lost, what="the loss to be seen")
    work = tmp_path / "bay" / "work"
    work.mkdir(parents=True)
    (work / "go").touch()
    assert service.run().outcome == "done"
    assert not Path(f"/proc/{pid}/exe").exists(), "nothing of the first ran beside the second"
    assert [one.host for one in service.snapshot().attempts_of("moved")] == ["box", "bay"]
