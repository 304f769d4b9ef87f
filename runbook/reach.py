"""Getting at a machine oneself, and what of the graph stands or falls with it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remote import openssh
from runbook.engine.epochs import rests_on_memory
from runbook.engine.hosts import target_of
from state import TaskKind, TaskState
from state.transitions import RUNNING

if TYPE_CHECKING:
    from runbook.workspace import Workspace
    from state import HostBinding, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependants:
    """Done and serving tasks of a role, by what would take their results away."""

    memory: tuple[str, ...]
    """They left something in shared memory, or a process: gone with the boot."""
    disk: tuple[str, ...]
    """They left files: gone with the machine."""


def dependants(snapshot: Snapshot, role: str) -> Dependants:
    """What of the graph depends on the machine behind a role."""
    memory: list[str] = []
    disk: list[str] = []
    for task in snapshot.tasks:
        if task.role != role or task.state not in RUNNING | {TaskState.DONE}:
            continue
        service = task.kind is TaskKind.SERVICE
        volatile = task.state in RUNNING or service or rests_on_memory(snapshot, task)
        (memory if volatile else disk).append(task.id)
    return Dependants(memory=tuple(memory), disk=tuple(disk))


def shell(binding: HostBinding, workspace: Workspace, *, command: str = "") -> list[str]:
    """argv of a shell on the machine, in the folder of its jobs; here, of `$SHELL` itself."""
    if binding.kind == "local":
        Path(binding.root).mkdir(parents=True, exist_ok=True)
        mine = os.environ.get("SHELL") or "/bin/sh"
        what = f"{shlex.quote(mine)} -c {shlex.quote(command)}" if command else shlex.quote(mine)
        inside = f"cd {shlex.quote(binding.root)} && exec {what}"
        return ["/bin/sh", "-c", inside]
    root = binding.root.removeprefix("~/")
    there = shlex.quote(root) if root != binding.root else shlex.quote(binding.root)
    what = f"-c {shlex.quote(command)}" if command else "-l"
    line = f'cd {there} 2>/dev/null; exec "${{SHELL:-/bin/sh}}" {what}'
    return openssh.command(
        target_of(binding),
        [line],
        options=() if command else ("-t",),
        known_hosts=workspace.private / "known_hosts" / binding.role,
    )
