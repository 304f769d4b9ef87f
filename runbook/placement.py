"""Which ready tasks may start now, and what the others wait for. Pure: from one snapshot.

Four things hold a ready task back: a resource that another task has on the same machine, room in
its shared memory, limits on how many jobs run at once, and an edit to what its inputs were made
from that nobody has settled. The answer names who has it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runbook.reasons import GONE, is_void
from state import AttemptState, Snapshot, Task, TaskKind, TaskState, UnknownHost
from state.graph import ready, topological
from state.transitions import RUNNING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

JOBS_PER_HOST = 4
"""Where `limits.per_host` says nothing."""
SHM = "shm:"
NAMED = 4
BELOW = "it is stale, and what the task uses was made from it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who may start, in the order of the file, and why the others wait."""

    start: tuple[Task, ...]
    waiting: Mapping[str, str]
    """Task -> reason, for ready tasks that something holds back."""


def place(
    snapshot: Snapshot,
    *,
    wanted: Callable[[Task], bool] = lambda _task: True,
    refused: Collection[str] = (),
) -> Placement:
    """What limits and exclusive resources allow now.

    Args:
        wanted: whether a task is in the scope of this run.
        refused: tasks that could not be started and are not tried again.
    """
    room, above = _Room.of(snapshot), unsettled(snapshot)
    start, waiting = [], {}
    for task in ready(snapshot):
        if task.id in refused or not wanted(task):
            continue
        edited = above.get(task.id)
        why = f"waits until {edited} is settled: {BELOW}" if edited else room.missing(task)
        if why:
            waiting[task.id] = why
        else:
            room.take(task, task.role or "")
            start.append(task)
    return Placement(start=tuple(start), waiting=waiting)


def unsettled(snapshot: Snapshot) -> dict[str, str]:
    """Task -> a stale task from which its inputs were made, with others in between.

    A task waits by its state for what it needs directly. One that is done stays done when what it
    was made from turns stale, so what comes after it has to look further up: nothing is published
    that rests on a value somebody has just changed. A task whose host alone has changed is not
    meant, since its results were made as they are asked for, and elsewhere they may live on; nor
    is what somebody skipped.
    """
    stale = {t.id for t in snapshot.tasks if t.state is TaskState.STALE and not is_void(t)}
    if not stale:
        return {}
    tasks = {task.id: task for task in snapshot.tasks if not task.removed}
    found: dict[str, str] = {}
    for name in topological(tuple(tasks.values())):
        for need in tasks[name].needs:
            above = need.task if need.task in stale else found.get(need.task)
            skipped = need.task in tasks and tasks[need.task].state is TaskState.SKIPPED
            if above and not skipped and need.condition != "any":
                found.setdefault(name, above)
    return found


def where_it_runs(snapshot: Snapshot, task: Task) -> str:
    """The host role of its newest attempt: an edit moves the task, not what runs. Else its own."""
    latest = snapshot.latest_attempt(task.id)
    moves = latest is not None and (task.state in RUNNING or task.state is TaskState.ATTENTION)
    return latest.host if latest is not None and moves else task.role or ""


def holders(snapshot: Snapshot) -> Iterator[Task]:
    """Tasks that have their resources now: those that run, and those that may still run."""
    for task in snapshot.tasks:
        if task.state in RUNNING:
            yield task
        elif task.state is TaskState.ATTENTION and (latest := snapshot.latest_attempt(task.id)):
            # Lost is not gone: its processes may sit on the GPU until it is swept.
            unsure = latest.state is AttemptState.LOST and latest.cls not in GONE
            if unsure or latest.state not in TERMINAL:
                yield task


@dataclass(slots=True)
class _Room:
    """What is taken and what is left."""

    machines: dict[str, str]
    """Role -> machine: two roles may be played by one."""
    shm_size: dict[str, int]
    limits: Mapping[str, int]
    most: int | None
    held: dict[tuple[str, str], str] = field(default_factory=dict)
    shm: defaultdict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    jobs: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Room:
        limits = json.loads(snapshot.meta.extra.get("limits", "{}"))
        machines = {host.role: host.epoch or host.machine for host in snapshot.hosts}
        sizes = {
            machines[host.role]: int(dict(host.facts.get("shm") or {}).get("size_bytes") or 0)
            for host in snapshot.hosts
        }
        per_host = limits.get("per_host") or {}
        room = cls(machines=machines, shm_size=sizes, limits=per_host, most=limits.get("global"))
        for task in holders(snapshot):
            room.take(task, where_it_runs(snapshot, task))
        return room

    def take(self, task: Task, role: str) -> None:
        """The task has its resources there, and counts as a job unless it is a service."""
        machine = self.machines.get(role, role)
        for name in task.resources:
            if name.startswith(SHM):
                self.shm[machine][task.id] = int(name.removeprefix(SHM))
            else:
                self.held[machine, name] = task.id
        if task.kind is not TaskKind.SERVICE and task.state is not TaskState.ATTENTION:
            self.jobs[role].append(task.id)

    def missing(self, task: Task) -> str:
        """Why it must wait; empty when it need not."""
        role = task.role or ""
        machine = self.machines.get(role, role)
        for name in task.resources:
            if name.startswith(SHM):
                if said := self._no_memory(machine, role, int(name.removeprefix(SHM))):
                    return said
            elif (machine, name) in self.held:
                return f"waits for {name} of {role}, which {self.held[machine, name]} has"
        running = self.jobs[role]
        limit = self.limits.get(role, JOBS_PER_HOST)
        if role and len(running) >= limit:
            return f"waits: {len(running)} of {limit} jobs run on {role} ({_some(running)})"
        everywhere = [name for names in self.jobs.values() for name in names] if self.most else []
        if self.most is not None and len(everywhere) >= self.most:
            return f"waits: {len(everywhere)} of {self.most} jobs run ({_some(everywhere)})"
        return ""

    def _no_memory(self, machine: str, role: str, wanted: int) -> str:
        from runbook.units import show_bytes  # pydantic comes with it, and most have no need

        size, held = self.shm_size.get(machine, 0), self.shm[machine]
        taken = sum(held.values())
        if not size or taken + wanted <= size:
            return ""
        if wanted > size:
            return f"needs {show_bytes(wanted)} of /dev/shm; {role} has {show_bytes(size)}"
        return (
            f"waits for {show_bytes(wanted)} of /dev/shm of {role}: {show_bytes(taken)} of "
            f"{show_bytes(size)} are for {_some(sorted(held))}"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def machine_of(snapshot: Snapshot, role: str | None) -> str:
    """The machine behind a role, as its boot or address; the role itself while none is bound."""
    try:
        host = snapshot.host(role or "")
    except UnknownHost:
        return role or ""
    return host.epoch or host.machine
