"""Whether a task is tried again by itself, as its policy in the runbook file says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runbook.reasons import DIAGNOSIS, GONE, LOST, WHY_STOPPED
from state import AttemptState, FailureClass, TaskState
from state.telling import STOPPED_BY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state import Attempt, Snapshot, Task

LONGEST_BACKOFF_S = 3600.0
NEVER_RETRIED = frozenset({FailureClass.OOM, FailureClass.CHECK_FAILED, FailureClass.STOPPED})
"""Unchanged, these end the same way; a person looks first."""


def retry_reason(task: Task, attempt: Attempt, cls: FailureClass) -> str | None:
    """Why the task is tried again by itself, or None."""
    policy = task.definition.get("retry") or {}
    allowed = int(policy.get("max", 0))
    names = {cls.value, exact_class(attempt, cls)}
    if stopped_by_person(attempt):
        return None
    if attempt.evidence.get(DIAGNOSIS, {}).get("final"):
        return None  # its own words: unchanged, it ends so again
    if cls in NEVER_RETRIED or not names & set(policy.get("on", ())) or attempt.number > allowed:
        return None
    pause = backoff_s(policy, attempt.number)
    after = f", after a pause of {pause:g} s" if pause else ""
    return f"retry {attempt.number} of {allowed} after {exact_class(attempt, cls)}{after}"


def after_loss(snapshot: Snapshot, task: Task) -> str | None:
    """Why a task whose attempt was found lost is tried again by itself, once that is swept.

    Whoever found the loss may have been told to start nothing, or was killed before it was swept.
    """
    attempt = snapshot.latest_attempt(task.id)
    if task.removed or task.state is not TaskState.ATTENTION or not task.reason.startswith(LOST):
        return None
    if attempt is None or attempt.state is not AttemptState.LOST or attempt.cls is None:
        return None
    if attempt.cls not in GONE and not _met_last(snapshot, attempt):
        return None
    return retry_reason(task, attempt, attempt.cls)


def _met_last(snapshot: Snapshot, attempt: Attempt) -> bool:
    """Whether the role is still played by the machine that said so: another one cannot sweep it."""
    met = [one for one in snapshot.epochs if one.role == attempt.host]
    then = [one for one in met if one.at <= (attempt.ended_at or "")]
    names = ("machine_id", "host_key")
    return bool(then) and all(met[-1].identity.get(n) == then[-1].identity.get(n) for n in names)


def stopped_by_person(attempt: Attempt) -> bool:
    """Whether it ended before the stop came: it is not to run all the same."""
    return str(attempt.evidence.get(WHY_STOPPED, "")).startswith(STOPPED_BY)


def exact_class(attempt: Attempt, cls: FailureClass) -> str:
    """`exit(75)` and `signal(9)` where the number is known, else the class."""
    number = {
        FailureClass.EXIT: attempt.exit_code,
        FailureClass.SIGNAL: attempt.signal,
    }.get(cls)
    return cls.value if number is None else f"{cls.value}({number})"


def backoff_s(policy: Mapping[str, Any], attempts: int) -> float:
    """The pause before the next attempt: it doubles with each, up to an hour."""
    first = float(policy.get("backoff_s") or 0.0)
    doubled: float = first * 2.0 ** min(attempts - 1, 20)
    return min(doubled, max(first, LONGEST_BACKOFF_S))
