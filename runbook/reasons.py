"""Reasons that are read again: by them verbs and fronts tell one wait or staleness from another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard

from state import AttemptState, FailureClass, Snapshot, Task, TaskKind, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state import Attempt

WAITS_FOR_PERSON = "waits for a person: "
"""Before the question of a gate."""
RESTARTED_BY = "restarted by "
"""How the reason of a server begins that is stopped only to be started again."""
DRAIN = "drain:"
"""Prefix of the keys under which is kept how long a server may drain."""
WHY_STOPPED = "why_stopped"
"""Key of an attempt's evidence: whoever sees a stop through says the same reason."""
CLASS_OF_STOP = "class_of_stop"
"""Key of an attempt's evidence: and counts the same failure, by which its task may be retried."""
NOT_RETRIED = "not retried: a failed check never is"
"""Why a retry policy does nothing about it: unchanged, it ends the same way."""
JUDGED = "judged:"
"""Prefix of the keys, by attempt, under which is kept how a failed one was judged later, and held:
`checks`, the `definition` that asks them, and the `evidence` that its end would have left."""
TOO_LATE = "had ended before the stop"
"""Beside the outcome of what somebody wanted to stop."""
WHY = "why"
"""Key of an attempt's evidence: how it ended, in the words that its task had then."""
PENDING_STOP = "pending_stop:"
"""Prefix of the keys, by task, under which is kept which attempt is stopped once its host answers:
whoever asked for the stop has gone."""
OTHER_KEY = "other_host_key:"
"""Prefix of the keys, by role, under which is kept which host key a machine shows, if not its own.
"""
WRONG_ANSWER = "wrong_answer:"
"""Prefix of the keys, by role, under which is kept what a machine said in place of an answer."""
OVER_BUDGET = "over budget: "
"""How the reason of a task begins that waits for a yes to spending more."""
RENTAL = "rental "
"""The same of a task that the rental of its machine does not last for."""

DIAGNOSIS = "diagnosis"
"""Key of an attempt's evidence: what its last words say of its end."""
LOST = "lost ("
"""How the reason of a task begins of whose attempt no outcome can be known."""
GONE = frozenset({FailureClass.LOST_REBOOT, FailureClass.LOST_REBUILT})
"""Losses that leave no process behind."""

REBOOTED = "was rebooted"
REPLACED = "is another machine now"
MOVED = "keeps its files in other folders now"
CHANGES = (REBOOTED, REPLACED, MOVED)
"""What may have become of the machine behind a host role."""


def done_checks(snapshot: Snapshot, attempt: Attempt | None) -> list[dict[str, Any]]:
    """The checks by which an attempt is, or was last, judged."""
    if attempt is None:
        return []
    found = judgement(snapshot, attempt).get("checks") or attempt.detail.get("done_when")
    return list(found or ())


def judgement(snapshot: Snapshot, attempt: Attempt) -> dict[str, Any]:
    """How a failed attempt was judged later, see `JUDGED`; empty when it was not."""
    found = json.loads(snapshot.meta.extra.get(JUDGED + attempt.id, "{}"))
    return found if isinstance(found, dict) else {"checks": found}  # as it was kept at first


def failed_by_checks(attempt: Attempt | None, task: Task) -> TypeGuard[Attempt]:
    """Whether the job of a failed task ended well, and only a check of it did not hold."""
    return (
        task.state is TaskState.FAILED
        and attempt is not None
        and attempt.cls is FailureClass.CHECK_FAILED
        and attempt.exit_code == 0
    )


def wrote_nothing(attempt: Attempt) -> bool:
    """Whether there was no job that could have written a log."""
    return attempt.detail.get("job") is None or attempt.cls is FailureClass.NEVER_STARTED


def made_of_earlier(snapshot: Snapshot, task: Task) -> str:
    """That done work is of an attempt that another came after, in words; else empty."""
    own = snapshot.latest_attempt(task.id)
    if task.state is not TaskState.DONE or own is None:
        return ""
    for need in task.needs:
        later = snapshot.latest_attempt(need.task)
        once = snapshot.task(need.task).kind is TaskKind.ONCE
        if once and later is not None and later.created_at > own.created_at:
            return f"made from an earlier attempt of {need.task}"
    return ""


def stop_pending(snapshot: Snapshot, task: Task) -> str:
    """The stop that an attempt has yet to see, in words; empty without one."""
    attempt = snapshot.latest_attempt(task.id)
    if attempt is None or attempt.state is not AttemptState.STOPPING:
        return ""
    why = attempt.evidence.get(WHY_STOPPED) or "stopped"
    if snapshot.meta.extra.get(PENDING_STOP + task.id) == attempt.id:
        return f"stop pending, `run` carries it out once {attempt.host} answers ({why})"
    return f"is being stopped ({why})"


def other_key(snapshot: Snapshot, role: str) -> str:
    """Which host key a machine shows in the place of the pinned one; empty when it does not."""
    return snapshot.meta.extra.get(OTHER_KEY + role, "")


def wrong_answer(snapshot: Snapshot, role: str) -> str:
    """What a machine that does not answer as it should said; empty when it was silent."""
    return snapshot.meta.extra.get(WRONG_ANSWER + role, "")


def link_word(snapshot: Snapshot, role: str) -> str:
    """What is wrong with the way to a machine that gives no answer, in a word or two."""
    if other_key(snapshot, role):
        return "other key"
    return "bad reply" if wrong_answer(snapshot, role) else "no link"


def found_instead(snapshot: Snapshot, role: str) -> str:
    """What a machine showed or said in the place of an answer; empty when it was silent."""
    if key := other_key(snapshot, role):
        return f"it shows another host key, {key}"
    return wrong_answer(snapshot, role)


def is_over(task: Task) -> bool:
    """Whether the task waits for a yes to spending more."""
    return task.state is TaskState.GATED and task.reason.startswith((OVER_BUDGET, RENTAL))


def asks_of_gate(task: Task) -> bool:
    """Whether the question that a task waits with is, or holds, the one of its gate."""
    return task.state is TaskState.GATED and WAITS_FOR_PERSON in task.reason


def all_done(tasks: Iterable[Task]) -> str:
    """That nothing is left to do, and what was left out."""
    skipped = [task.id for task in tasks if task.state is TaskState.SKIPPED]
    if not skipped:
        return "every task is done"
    few = ", ".join(skipped[:4]) + (" ..." if len(skipped) > 4 else "")
    return f"every task is done or skipped ({few})"


def is_void(task: Task) -> bool:
    """Whether a task is stale because of its host alone: its checks can bring it back."""
    return task.state is TaskState.STALE and any(change in task.reason for change in CHANGES)
