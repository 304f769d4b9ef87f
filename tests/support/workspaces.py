"""Small workspaces on the host `local`, for tests of the engine and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from remote.supervisor.locks import lock_is_held
from runbook.engine.events import TaskMoved
from runbook.plan import load_text
from runbook.service import Service
from runbook.workspace import Workspace
from state import HostBinding
from tests.support.deadline import wait_for

HEAD = """\
version: 1
name: small
title: A small runbook
hosts: {box: {title: here}}
phases: {one: One}
defaults: {host: box}
tasks:
"""


def make(folder: Path, tasks: str, *, head: str = HEAD) -> Service:
    """A workspace with these tasks (YAML, indented by two), its role bound to this machine."""
    runbook = load_text(head + tasks, path=str(folder / "runbook.yaml"), params={})
    service = Service.create(folder, runbook, actor="tester")
    (folder / "runbook.yaml").write_text(head + tasks, encoding="utf-8")
    workspace = Workspace(folder)
    binding = HostBinding(
        role="box",
        kind="local",
        root=str(workspace.private / "host"),
        work=str(folder / "work"),
    )
    service.bind("box", binding)
    return service


def states(service: Service) -> dict[str, str]:
    """Task -> state."""
    return {task.id: task.state.value for task in service.snapshot().tasks}


def left_running(service: Service, folder: Path) -> int:
    """Runs it until a task is active, and leaves; the process whose job wrote `work/pid`."""
    leave = threading.Event()

    def listen(event: object) -> None:
        if isinstance(event, TaskMoved) and event.state == "active":
            leave.set()

    service.run(stop_event=leave, listen=listen)
    pid = folder / "work" / "pid"
    return int(wait_for(lambda: pid.exists() and pid.read_text().strip(), what="the job to start"))


def parent_of(pid: int) -> int:
    """The process that started it: of a job, its supervisor."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(")")[2].split()[1])


def settle(folder: Path) -> None:
    """Wait until each job below has ended and its supervisor is gone: it lets go of its job, and
    takes its keys away, a moment after the outcome can be read."""

    def live() -> list[str]:
        found = folder.rglob("jobs/*/lock")
        return [str(lock.parent) for lock in found if lock_is_held(str(lock.parent))]

    wait_for(lambda: not live(), what="the jobs to be let go")


def command(folder: Path, *words: str) -> list[str]:
    """The command line of a verb in a workspace."""
    return [sys.executable, "-m", "runbook", "-w", str(folder), *words]


def cli(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a verb to its end."""
    return subprocess.run(
        command(folder, *words),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
        cwd=Path(__file__).parent.parent.parent,
    )
