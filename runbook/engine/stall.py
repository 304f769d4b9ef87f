"""A job that lives and gets no further: judged by our own watching, never by comparing clocks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runbook.engine.stopping import stop_beside
from state import Attempt, FailureClass, Task, TaskState

if TYPE_CHECKING:
    from remote import JobStatus
    from runbook.engine.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """What the metric was when it last changed, and when we saw that."""

    value: Any
    since: float


def look(world: World, task: Task, attempt: Attempt, status: JobStatus) -> None:
    """Warns of a job whose metric stands still, or stops it, as its task says."""
    policy = task.definition["stall"]
    value, now = measured(status, policy["metric"]), time.monotonic()
    seen = world.stalls.get(attempt.id)
    if seen is None or seen.value != value:
        world.stalls[attempt.id] = Stall(value=value, since=now)
        return
    if now - seen.since < policy["for_s"]:
        return
    known = "nothing was reported" if value is None else f"it stays {value}"
    reason = f"stalled: {known} ({policy['metric']}) for {now - seen.since:.0f} s"
    if policy["action"] == "stop":
        stop_beside(
            world, task, attempt, then=TaskState.FAILED, reason=reason, cls=FailureClass.TIME_LIMIT
        )
        return
    key = ("stall", attempt.id, str(value))
    hint = f"Look: `runbook logs {task.id}`; end it: `runbook stop {task.id}`."
    world.warn_once(key, f"{task.id}: {reason}", hint, task.id)


def measured(status: JobStatus, metric: str) -> Any:
    """The metric in the newest progress line, or how much was written."""
    if metric == "output":
        return status.out_size + status.err_size
    found: Any = status.progress
    for part in metric.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
