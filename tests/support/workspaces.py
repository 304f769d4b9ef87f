"""Small workspaces on the host `local`, for tests of the engine and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from remote.supervisor.locks import lock_is_held
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
