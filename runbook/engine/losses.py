"""A lost attempt whose task is tried again by its policy: swept first, and shown to be gone.

Who found the loss does not matter: this engine, one that was killed before it had swept, or a look
that starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote import RemoteError, StopReport, Unreachable
from runbook.claims import require_free
from runbook.engine.finish import wait_before_retry
from runbook.engine.stopping import survivors
from runbook.errors import CannotStart
from runbook.retries import after_loss
from state import ClaimHeld, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.engine.world import World
    from state import Attempt, Snapshot, Task


def sweep_lost(world: World, snapshot: Snapshot, wanted: Callable[[Task], bool]) -> bool:
    """Begins to sweep what is to be tried again; whether any of it is still to be swept."""
    found = False
    for task in snapshot.tasks:
        if task.state is not TaskState.ATTENTION or not wanted(task) or task.id in world.refused:
            continue
        again, attempt = after_loss(snapshot, task), snapshot.latest_attempt(task.id)
        if again is None or attempt is None:
            continue
        found = True
        if world.background.busy(attempt.id):
            continue
        try:
            require_free(world.workspace, snapshot, actor=world.store.actor, tasks=[task.id])
            _sweep(world, snapshot, task, attempt, again)
        except ClaimHeld as error:
            world.held.add(task.id)
            world.refuse(task, str(error), error.hint)
        except (CannotStart, RemoteError) as error:
            _not_swept(world, attempt, error)
    return found


def _sweep(world: World, snapshot: Snapshot, task: Task, attempt: Attempt, again: str) -> None:
    host, job = world.host_with(snapshot, attempt), attempt.detail["job"]

    def sweep(_: World) -> StopReport:
        return host.stop(attempt.id, grace_s=float(job["grace_s"]), ports=tuple(job["ports"]))

    def swept(report: StopReport) -> None:
        world.reachable(world.store.snapshot(), attempt.host)
        now = world.store.snapshot()
        latest = now.latest_attempt(task.id)
        if now.task(task.id).state is not TaskState.ATTENTION or latest != attempt:
            return  # a person decided meanwhile
        if report.state != "stopped":
            left = f"something of its lost attempt is still there: {survivors(report)}"
            hint = "It is not tried again before that has ended."
            world.refuse(task, f"{task.id}: {left}", hint)
            return
        world.move(task, TaskState.READY, reason=again)
        wait_before_retry(world, task, attempt)

    def failed(error: Exception) -> None:
        if not isinstance(error, CannotStart | RemoteError):
            raise error
        _not_swept(world, attempt, error)

    world.background.begin(
        world, attempt.id, attempt.host, sweep,
        done=swept, failed=failed, keep=True, brief=True,
    )  # fmt: skip


def _not_swept(world: World, attempt: Attempt, error: CannotStart | RemoteError) -> None:
    if isinstance(error, Unreachable):  # asked again once it answers
        world.unreachable(attempt.host, error)
    else:
        task = world.store.snapshot().task(attempt.task)
        world.refuse(task, f"{task.id}: its lost attempt was not swept: {error}", error.hint)
