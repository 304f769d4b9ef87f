"""Reasons that are read again: by them verbs and fronts tell one wait or staleness from another."""

from __future__ import annotations

from state import AttemptState, Snapshot, Task, TaskState

STOPPED_BY = "stopped by "
"""How the reason of a person's stop begins."""
WAITS_FOR_PERSON = "waits for a person: "
"""Before the question of a gate."""
RESTARTED_BY = "restarted by "
"""How the reason of a server begins that is stopped only to be started again."""
DRAIN = "drain:"
"""Prefix of the keys under which is kept how long a server may drain."""
OVER_BUDGET = "over budget: "
"""How the reason of a task begins that waits for a yes to spending more."""

REBOOTED = "was rebooted"
REPLACED = "is another machine now"
MOVED = "keeps its files in other folders now"
CHANGES = (REBOOTED, REPLACED, MOVED)
"""What may have become of the machine behind a host role."""


def is_stopped(snapshot: Snapshot, task: Task) -> bool:
    """Whether the task waits because a person stopped it, and runs again when one says so."""
    attempt = snapshot.latest_attempt(task.id)
    return (
        task.state is TaskState.GATED
        and task.reason.startswith(STOPPED_BY)
        and attempt is not None
        and attempt.state is AttemptState.STOPPED
    )


def is_over(task: Task) -> bool:
    """Whether the task waits for a yes to spending more."""
    return task.state is TaskState.GATED and task.reason.startswith(OVER_BUDGET)


def asks_of_gate(task: Task) -> bool:
    """Whether the question that a task waits with is, or holds, the one of its gate."""
    return task.state is TaskState.GATED and WAITS_FOR_PERSON in task.reason


def is_void(task: Task) -> bool:
    """Whether a task is stale because of its host alone: its checks can bring it back."""
    return task.state is TaskState.STALE and any(change in task.reason for change in CHANGES)
