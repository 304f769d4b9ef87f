"""Old jobs are shrunk by the engine itself, on machines that have nothing else to do for us.

Nothing is lost by it: an outcome stays on the host too, with the ends of its logs, and only jobs
count whose outcome is recorded and whose logs are copied here, whole.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

from remote import RemoteError
from runbook.engine.events import Info
from runbook.engine.logs import STREAMS, size_of, sizes_of
from runbook.errors import CannotStart
from runbook.units import show_bytes
from state import TaskState
from state.transitions import RUNNING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remote import Host, JobStatus, Shrunk
    from runbook.engine.world import World
    from runbook.workspace import Workspace
    from state import Snapshot

FIRST_S = 120.0
"""An engine that lives shorter has no time for it."""
EVERY_S = 6 * 3600.0
KEPT = 20
"""The newest jobs of a machine stay whole."""
OLD_S = 7 * 86400.0
AT_ONCE = 200
"""Jobs to one request."""


def shrink_old_jobs(world: World, snapshot: Snapshot) -> None:
    """Begins it beside the loop, for each idle machine whose time has come."""
    if world.lease is None or not world.may_start:
        return
    busy = {task.role for task in snapshot.tasks if task.state in RUNNING - {TaskState.SERVING}}
    now = time.monotonic()
    for binding in snapshot.hosts:
        due = world.next_garbage.setdefault(binding.role, now + FIRST_S)
        if now < due or binding.role in busy:
            continue
        old = old_attempts(world, snapshot, binding.role)
        world.next_garbage[binding.role] = now + (FIRST_S if len(old) == AT_ONCE else EVERY_S)
        if old:
            _begin(world, snapshot, binding.role, old)


def old_attempts(world: World, snapshot: Snapshot, role: str) -> list[str]:
    """Attempts that ended long ago by our clock; the host asks its own too."""
    today = world.now()
    ended = [
        row
        for row in snapshot.attempts
        if row.host == role and row.state in TERMINAL and row.ended_at and "job" in row.detail
    ]
    ended.sort(key=lambda row: str(row.ended_at), reverse=True)
    return [
        row.id
        for row in ended[KEPT:]
        if row.id not in world.shrunk
        and (today - datetime.fromisoformat(str(row.ended_at))).total_seconds() >= OLD_S
    ][-AT_ONCE:]


def _begin(world: World, snapshot: Snapshot, role: str, old: Sequence[str]) -> None:
    try:
        host = world.hosts.of_role(snapshot, role)
    except (RemoteError, CannotStart):
        return  # another time

    def look(own: World) -> list[Shrunk]:
        return shrink(host, own.workspace, old)

    def done(gone: list[Shrunk]) -> None:
        world.shrunk.update(old)
        if gone:
            freed = show_bytes(sum(one.freed_bytes for one in gone))
            text = f"{role}: {len(gone)} old jobs keep their outcome and the ends of their logs"
            world.emit(Info(text=f"{text}; {freed} freed"))

    def failed(error: Exception) -> None:
        if not isinstance(error, RemoteError):  # a host that is silent is told by the poll
            raise error

    key = f"garbage {role}"
    world.background.begin(world, key, role, look, done=done, failed=failed, brief=True)


def shrink(host: Host, workspace: Workspace, old: Sequence[str]) -> list[Shrunk]:
    """Shrinks those of which everything is here."""
    statuses = host.poll(old)
    stored = [name for name in old if is_stored(workspace, statuses[name])]
    return host.collect_garbage(stored, keep=0, older_than_s=OLD_S) if stored else []


def is_stored(workspace: Workspace, status: JobStatus) -> bool:
    """Whether the copies of its logs are as long as the logs."""
    sizes = sizes_of(status)
    return status.state == "exited" and all(
        size_of(workspace.log(status.attempt, stream)) == sizes[stream] for stream in STREAMS
    )
