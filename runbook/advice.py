"""The next safe action: one command, computed from the graph alone, and why."""

from __future__ import annotations

from itertools import takewhile
from shlex import quote
from typing import TYPE_CHECKING

from runbook.placement import unsettled
from runbook.reasons import (
    NOT_RETRIED,
    all_done,
    failed_by_checks,
    is_void,
    other_key,
    stop_pending,
    wrote_nothing,
)
from runbook.rented import HERE, where
from runbook.requests import runbook_is_approved
from runbook.retries import after_loss
from runbook.views import NextAction
from state import AttemptState, Snapshot, Task, TaskState
from state.claims import RUN
from state.graph import descendants, ready
from state.telling import is_stopped
from state.transitions import RUNNING

if TYPE_CHECKING:
    from collections.abc import Collection

    from state import Attempt, Claim

SAME_FAILURES = 2
"""After so many failures by one definition, trying again unchanged is a person's decision."""
SETTLED = frozenset({TaskState.DONE, TaskState.SKIPPED})
IDLE = SETTLED | {TaskState.DRAFT, TaskState.BLOCKED, TaskState.SERVING}
"""Nothing is to be done about these now."""


def next_action(
    snapshot: Snapshot, *, engine: str | None, held: Collection[Claim] = ()
) -> NextAction:
    """What to do now. Attention first, then people's decisions, then what can simply run.

    Args:
        held: claims of others that hold: what they have is left to them.
    """
    tasks = [task for task in snapshot.tasks if not task.removed]
    theirs = {claim.subject for claim in held}
    free = [task for task in tasks if not theirs & {RUN, task.id}]
    for finder in (_other_keys, _attention, _failed, _running, _gated, _stale, _ready):
        # What runs is followed whoever claimed it, unless that is the whole run.
        all_of_it = finder is _running and (engine or RUN not in theirs)
        action = finder(snapshot, tasks if all_of_it else free, engine)
        if action is not None:
            return action
    if claimed := _claimed(tasks, held):
        return claimed
    if all(task.state in SETTLED for task in tasks):
        return NextAction(verb="nothing", task=None, command="", reason=all_done(tasks))
    for task in tasks:
        if task.state is TaskState.BLOCKED:
            return _on(task, "status", f"{task.id} {task.reason}")
    left = next(task for task in tasks if task.state not in SETTLED)
    return _on(left, "stop", f"{left.id} is {left.state} and nothing else is left to do")


def for_agent(step: NextAction, snapshot: Snapshot) -> NextAction:
    """The same for an agent, which may run nothing that no person has said yes to."""
    if step.verb != "run" or runbook_is_approved(snapshot):
        return step
    return NextAction(
        verb="confirm",
        task=step.task,
        command="runbook confirm --runbook",
        reason=f"no person has approved this runbook as it is loaded; then `run` ({step.reason})",
        person=True,
    )


def _on(
    task: Task, verb: str, reason: str, command: str = "", *, said: str = "", person: bool = False
) -> NextAction:
    command = command or f"runbook {verb} {quote(task.id)}"
    return NextAction(
        verb=verb, task=task.id, command=command, reason=reason, said=said, person=person
    )


def _claimed(tasks: list[Task], held: Collection[Claim]) -> NextAction | None:
    """Only what others claimed is left: theirs to go on with, or to give back."""
    for claim in sorted(held, key=lambda one: one.subject != RUN):
        for task in tasks:
            if claim.subject in (RUN, task.id) and task.state not in IDLE:
                what = "the whole run" if claim.subject == RUN else claim.subject
                name, holder = quote(claim.subject), claim.holder
                reason = (
                    f"{what} is claimed by {holder}: wait, or ask {holder} to "
                    f"`runbook release {name}`; else "
                    f'`runbook claim {name} --take-over --reason "..."`'
                )
                return _on(task, "status", reason)
    return None


def _other_keys(snapshot: Snapshot, tasks: list[Task], _engine: str | None) -> NextAction | None:
    for task in tasks:
        shown = task.state not in SETTLED and task.role and other_key(snapshot, task.role)
        if shown:
            reason = (
                f"{task.role} shows another host key: first find out whether it was rebuilt, and "
                f"compare the key with the provider's page: {shown}"
            )
            command = f"runbook host repin {task.role}"
            return _on(task, "repin", reason, command, person=True)
    return None


def _attention(snapshot: Snapshot, tasks: list[Task], _engine: str | None) -> NextAction | None:
    for task in tasks:
        if task.state is TaskState.UNHEALTHY:
            reason = f"{task.id} is up and does no work; look at its log first"
            return _on(task, "restart", reason, said=task.reason, person=True)
        latest = snapshot.latest_attempt(task.id)
        refused = latest is not None and latest.state is AttemptState.NEVER_STARTED
        if after_loss(snapshot, task):
            continue  # decided beforehand, by its retry policy
        if task.state is TaskState.ATTENTION and refused:
            reason = f"{task.id} was not started, so it has no log: its host names what holds it"
            return _on(task, "status", reason, said=task.reason, person=True)
        if task.state is TaskState.ATTENTION:
            reason = f"{task.id} needs a decision"
            return _on(task, "logs", reason, said=task.reason, person=True)
    return None


def _failed(snapshot: Snapshot, tasks: list[Task], _engine: str | None) -> NextAction | None:
    for task in tasks:
        if task.state is TaskState.FAILED:
            return _of_failed(snapshot, task, snapshot.latest_attempt(task.id))
    return None


def _of_failed(snapshot: Snapshot, task: Task, attempt: Attempt | None) -> NextAction:
    """Trying again helps only where something else may come of it; else first comes a look."""
    name, said = quote(task.id), task.reason
    if failed_by_checks(attempt, task):
        if attempt.definition_hash != task.definition_hash:
            reason = (
                f"{task.id} failed by a check and was edited since: judge it again by what is "
                f"asked now; if more than its checks changed, `runbook retry {name}`"
            )
            return _on(task, "verify", reason, said=said, person=True)
        reason = (
            f"{task.id}: {NOT_RETRIED}. Its evidence is there: mend what it looks at, or the check "
            f"and `runbook init`; then `runbook verify {name}`. The work anew: "
            f"`runbook retry {name}`"
        )
        return _on(task, "status", reason, said=said)
    if attempt is None or wrote_nothing(attempt):
        reason = (
            f"{task.id} failed and has no log of its own: mend what it found, then "
            f"`runbook retry {name}`"
        )
        return _on(task, "status", reason, said=said)
    tries, logs = _failures(snapshot, task), f"`runbook logs {name}`"
    if tries >= SAME_FAILURES:
        reason = f"{task.id} failed {tries} times as it is defined; see {logs}"
        return _on(task, "retry", reason, said=said, person=True)
    reason = f"{task.id} failed; mend the cause first: {logs}"
    return _on(task, "retry", reason, said=said)


def _failures(snapshot: Snapshot, task: Task) -> int:
    """Attempts in a row, the last ones, that failed by the present definition."""
    ended = reversed(snapshot.attempts_of(task.id))
    bad = takewhile(lambda one: one.definition_hash == task.definition_hash, ended)
    return sum(one.state is not AttemptState.VERIFIED for one in bad)


def _running(snapshot: Snapshot, tasks: list[Task], engine: str | None) -> NextAction | None:
    moving = [task for task in tasks if task.state in RUNNING - {TaskState.SERVING}]
    if not moving:
        return _lost(snapshot, tasks, engine)
    names = ", ".join(task.id for task in moving)
    stops = [f"; {task.id}: {stop}" for task in moving if (stop := stop_pending(snapshot, task))]
    if engine:
        reason = f"{names} under way, advanced by {engine}{''.join(stops)}"
        return NextAction(verb="wait", task=moving[0].id, command="runbook wait", reason=reason)
    reason = f"{names} under way on the host and nobody watches: adopt and go on{''.join(stops)}"
    return NextAction(verb="run", task=moving[0].id, command="runbook run", reason=reason)


def _lost(snapshot: Snapshot, tasks: list[Task], engine: str | None) -> NextAction | None:
    """What was lost and is tried again by its policy."""
    for task in tasks:
        if again := after_loss(snapshot, task):
            reason = f"{task.id} was lost; once nothing of it is left it is tried again ({again})"
            if not engine:
                return NextAction(verb="run", task=task.id, command="runbook run", reason=reason)
            reason += f", by {engine}"
            return NextAction(verb="wait", task=task.id, command="runbook wait", reason=reason)
    return None


def _gated(snapshot: Snapshot, tasks: list[Task], _engine: str | None) -> NextAction | None:
    above = unsettled(snapshot)
    for task in tasks:
        if task.id in above:
            continue  # what it was made from was changed: that is to be settled first
        if is_stopped(task):
            reason = f"{task.id} was {task.reason}; it runs again when somebody says so"
            return _on(task, "retry", reason, person=True)
        if task.state is TaskState.GATED:
            command = f'runbook gate approve {quote(task.id)} --reason "..."'
            return _on(task, "approve", f"{task.id} {task.reason}", command, person=True)
    return None


def _stale(snapshot: Snapshot, tasks: list[Task], _engine: str | None) -> NextAction | None:
    for task in tasks:
        if task.state is TaskState.STALE:
            reason = f"{task.id} is stale: {task.reason or 'its inputs changed'}"
            # Once its checks were asked again and failed, only running it again helps.
            gone = any(check.verdict == "fail" for check in snapshot.checks_of(task.id))
            if is_void(task) and not gone:
                return _on(task, "verify", reason)
            if is_void(task) or not _was_used(snapshot, task):
                return _on(task, "retry", reason, person=not is_void(task))
            reason += f'; `runbook skip {quote(task.id)} --reason "..."` keeps what it made'
            command = f"runbook retry {quote(task.id)} --below"
            return _on(task, "retry", reason, command, person=True)
    return None


def _was_used(snapshot: Snapshot, task: Task) -> bool:
    """Whether done work was made from what this task made."""
    done = {t.id for t in snapshot.tasks if t.state is TaskState.DONE}
    return not done.isdisjoint(descendants(snapshot, task.id))


def _ready(snapshot: Snapshot, tasks: list[Task], engine: str | None) -> NextAction | None:
    free = {task.id for task in tasks}
    found = [task for task in ready(snapshot) if task.id in free]
    if not found:
        return None
    bound = {host.role for host in snapshot.hosts}
    homeless = next((task for task in found if task.role and task.role not in bound), None)
    if homeless is not None and all(task.role and task.role not in bound for task in found):
        place = where(snapshot, homeless.role or "")
        command = f"runbook host bind {homeless.role} {place}"
        reason = f"{homeless.id} is ready and no machine plays {homeless.role}"
        if place == HERE:
            reason += ": `local` is this one; else USER@ADDRESS"
        return _on(homeless, "bind", reason, command, person=True)
    names = ", ".join(task.id for task in found[:4]) + (" ..." if len(found) > 4 else "")
    if engine:
        reason = f"{names} ready; {engine} starts what limits allow"
        return NextAction(verb="wait", task=found[0].id, command="runbook wait", reason=reason)
    return NextAction(verb="run", task=found[0].id, command="runbook run", reason=f"ready: {names}")
