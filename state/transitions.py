"""The tables of legal state changes. What is not here does not happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state.errors import IllegalTransition, StateMoved
from state.model import AttemptState as A
from state.model import TaskState as T

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TASK_EDGES: Mapping[T, frozenset[T]] = {
    T.DRAFT: frozenset({T.BLOCKED, T.READY, T.SKIPPED}),
    T.BLOCKED: frozenset({T.READY, T.SKIPPED}),
    # Straight to verifying: the checks may already hold, then nothing needs to run.
    T.READY: frozenset(
        {T.BLOCKED, T.GATED, T.ACTIVE, T.STARTING, T.VERIFYING, T.SKIPPED, T.ATTENTION}
    ),
    T.GATED: frozenset(
        {T.BLOCKED, T.READY, T.ACTIVE, T.STARTING, T.VERIFYING, T.FAILED, T.SKIPPED}
    ),
    # Back to ready: the attempt never started, or was stopped on request.
    T.ACTIVE: frozenset({T.STARTING, T.VERIFYING, T.FAILED, T.ATTENTION, T.READY}),
    T.VERIFYING: frozenset({T.DONE, T.FAILED, T.ATTENTION, T.ACTIVE, T.READY, T.GATED, T.STALE}),
    # To ready without a detour: a service that ended well is wanted once more.
    T.DONE: frozenset({T.STALE, T.VERIFYING, T.READY}),
    T.FAILED: frozenset({T.READY, T.VERIFYING, T.SKIPPED, T.STALE, T.ATTENTION}),
    T.SKIPPED: frozenset({T.READY, T.STALE}),
    # To done: a person decides that the change does not matter.
    T.STALE: frozenset({T.READY, T.DONE, T.VERIFYING, T.SKIPPED}),
    T.ATTENTION: frozenset(
        {
            *(T.READY, T.ACTIVE, T.VERIFYING, T.FAILED, T.SKIPPED, T.STALE),
            *(T.STARTING, T.SERVING, T.UNHEALTHY, T.DRAINING),
        }
    ),
    T.STARTING: frozenset({T.SERVING, T.UNHEALTHY, T.DRAINING, T.FAILED, T.ATTENTION, T.READY}),
    T.SERVING: frozenset({T.UNHEALTHY, T.DRAINING, T.FAILED, T.ATTENTION}),
    T.UNHEALTHY: frozenset({T.SERVING, T.STARTING, T.DRAINING, T.FAILED, T.ATTENTION}),
    T.DRAINING: frozenset({T.DONE, T.FAILED, T.ATTENTION, T.READY, T.STALE}),
}
"""`draft` appears only when a task is loaded; blocked and ready follow from its needs."""

SERVICE_ONLY = frozenset({T.STARTING, T.SERVING, T.UNHEALTHY, T.DRAINING})
RUNNING = frozenset({T.ACTIVE, T.VERIFYING, T.STARTING, T.SERVING, T.UNHEALTHY, T.DRAINING})
PENDING = frozenset({T.DRAFT, T.BLOCKED, T.READY})
BEGINS = frozenset({T.ACTIVE, T.STARTING})

# A client that was away sees only the newest state of a job, so the path may be walked in leaps;
# it is never walked backwards.
ATTEMPT_EDGES: Mapping[A, frozenset[A]] = {
    A.INTENDED: frozenset(
        {A.PUBLISHED, A.STARTED, A.RUNNING, A.EXITED, A.STOPPING, A.NEVER_STARTED, A.LOST}
    ),
    A.PUBLISHED: frozenset({A.STARTED, A.RUNNING, A.EXITED, A.STOPPING, A.NEVER_STARTED, A.LOST}),
    A.STARTED: frozenset({A.RUNNING, A.EXITED, A.STOPPING, A.LOST}),
    A.RUNNING: frozenset({A.EXITED, A.STOPPING, A.LOST}),
    A.EXITED: frozenset({A.COLLECTING, A.STOPPING, A.LOST}),
    A.COLLECTING: frozenset({A.VERIFIED, A.CHECK_FAILED, A.LOST}),
    A.STOPPING: frozenset({A.STOPPED, A.STOP_INCOMPLETE, A.EXITED, A.NEVER_STARTED, A.LOST}),
    A.STOP_INCOMPLETE: frozenset({A.STOPPING, A.STOPPED, A.LOST}),
    A.VERIFIED: frozenset(),
    A.CHECK_FAILED: frozenset(),
    A.STOPPED: frozenset(),
    A.NEVER_STARTED: frozenset(),
    A.LOST: frozenset(),
}

TERMINAL = frozenset(state for state, ways in ATTEMPT_EDGES.items() if not ways)
"""Nothing of the attempt runs any more. `stop_incomplete` is not: survivors were seen."""


def check_task_move(task: str, found: T, to: T, *, expect: Collection[T], service: bool) -> None:
    """Raise unless the task is where the caller thinks and the edge exists for its kind."""
    if found not in expect:
        raise StateMoved("task", task, found, to, expect)
    legal = TASK_EDGES[found] if service else TASK_EDGES[found] - SERVICE_ONLY
    if to not in legal:
        raise IllegalTransition("task", task, found, to, legal)


def check_attempt_move(attempt: str, found: A, to: A, *, expect: Collection[A]) -> None:
    """Raise unless the attempt is where the caller thinks and the edge exists."""
    if found not in expect:
        raise StateMoved("attempt", attempt, found, to, expect)
    if to not in ATTEMPT_EDGES[found]:
        raise IllegalTransition("attempt", attempt, found, to, ATTEMPT_EDGES[found])
