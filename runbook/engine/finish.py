"""The end of an attempt: results collected, checks run, and only then a verdict on the task."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from remote import RemoteError, Unreachable
from runbook import retries
from runbook.check_words import check_name, found
from runbook.engine import renewing
from runbook.engine.events import Info
from runbook.forecast import OUT, RAN_S, STEADY_S
from runbook.reasons import NOT_RETRIED, TOO_LATE, WHY
from runbook.steady import steady_s
from state import Attempt, AttemptState, FailureClass, Task, TaskState
from state.ids import stamp
from state.transitions import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote import CheckResult, Host, JobStatus
    from runbook.engine.world import World
    from state import Purpose, Tx

CHECK_TRIES = 3
"""How often checks are asked while one of them has no answer, such as on a slow disk."""
CHECK_LIMIT_S = 900.0
"""For all checks of a task together: a manifest of a large model is read whole."""
LONGEST_PROGRESS = 16 << 20
"""Bytes of progress that are read for a rate: of a task of days, its own time tells enough."""
DECISION, LONGEST_DECISION = "decision", 1000
"""Key of a job's results under which it says what is to be done by them."""


def finish(
    world: World,
    task_id: str,
    attempt_id: str,
    *,
    cls: FailureClass,
    reason: str = "",
    out: Mapping[str, Any],
    evidence: Mapping[str, Any],
    **outcome: Any,
) -> None:
    """Takes an ended attempt to its verdict. Resumable: each commit leaves a state to go on from.

    Its checks may read a model of many gigabytes, so they are asked beside the loop.

    Args:
        cls: `ok` when it ended well; then the checks decide.
        outcome: exit code and signal of the attempt, where there are any.
    """
    if not collecting(world, task_id, attempt_id, evidence=evidence, **outcome):
        return
    snapshot = world.store.snapshot()
    task, attempt = snapshot.task(task_id), _attempt(snapshot.attempts_of(task_id), attempt_id)
    checks = attempt.detail.get("done_when") or []
    if cls is not FailureClass.OK or not checks or not attempt.host:
        conclude(world, task, attempt, cls, reason, out, checks, ())
        return

    def look(own: World) -> Sequence[CheckResult]:
        return ask(own.host_with(snapshot, attempt), checks, attempt)

    def done(results: Sequence[CheckResult]) -> None:
        judge(world, task, attempt, reason, out, checks, results)

    def failed(error: Exception) -> None:
        if isinstance(error, Unreachable):
            world.unreachable(attempt.host, error)  # asked again once it answers
        elif isinstance(error, RemoteError):
            undecided(world, task, attempt, f"its checks could not be asked: {error}", checks, ())
        else:
            raise error

    world.background.begin(world, attempt.id, attempt.host, look, done=done, failed=failed)


def judge(
    world: World,
    task: Task,
    attempt: Attempt,
    reason: str,
    out: Mapping[str, Any],
    checks: Sequence[Mapping[str, Any]],
    results: Sequence[CheckResult],
) -> None:
    """What the checks of an attempt that ended well came to."""
    cls = FailureClass.OK
    if failed := _first(checks, results, "fail"):
        cls, reason = FailureClass.CHECK_FAILED, failed
    elif unknown := _first(checks, results, "unknown"):
        undecided(world, task, attempt, unknown, checks, results)
        return
    conclude(world, task, attempt, cls, reason, out, checks, results)


def ask(host: Host, checks: Sequence[Mapping[str, Any]], attempt: Attempt) -> Sequence[CheckResult]:
    """Runs the checks; again while one could not be answered and none has failed."""
    results: Sequence[CheckResult] = ()
    for _ in range(CHECK_TRIES):
        results = host.check(checks, attempt=attempt.id, timeout=CHECK_LIMIT_S)
        verdicts = {result.verdict for result in results}
        if "fail" in verdicts or "unknown" not in verdicts:
            break
    return results


def undecided(
    world: World,
    task: Task,
    attempt: Attempt,
    reason: str,
    checks: Sequence[Mapping[str, Any]],
    results: Sequence[CheckResult],
) -> None:
    """Nobody can tell whether it is done: that is no failure, and a person decides."""
    with world.store.write(lease=world.lease) as tx:
        asked = zip(checks, results, strict=True) if results else ()
        record_checks(tx, task.id, "done", asked, attempt=attempt.id, epoch=attempt.epoch)
        tx.move_attempt(
            attempt.id,
            AttemptState.LOST,
            expect={AttemptState.COLLECTING},
            cls=FailureClass.LOST_EVIDENCE_GONE,
        )
        tx.move_task(task.id, TaskState.ATTENTION, expect={task.state}, reason=reason)
    world.announce(task, TaskState.ATTENTION, reason, attempt)


def collecting(
    world: World, task_id: str, attempt_id: str, *, evidence: Mapping[str, Any], **outcome: Any
) -> bool:
    """Commits that the attempt ended and is being looked at; not one that is stopped meanwhile."""
    with world.store.write(lease=world.lease) as tx:
        attempt = tx.attempt(attempt_id)
        if attempt.state is AttemptState.STOPPING or attempt.state in TERMINAL:
            return False  # a task beside the loop stopped it while its host was asked
        if attempt.state is not AttemptState.COLLECTING:
            if attempt.state is not AttemptState.EXITED:
                tx.move_attempt(
                    attempt.id,
                    AttemptState.EXITED,
                    expect={attempt.state},
                    evidence=evidence,
                    **outcome,
                )
            tx.move_attempt(attempt.id, AttemptState.COLLECTING, expect={AttemptState.EXITED})
        if tx.task(task_id).state is TaskState.ACTIVE:
            tx.move_task(task_id, TaskState.VERIFYING, expect={TaskState.ACTIVE})
    return True


def evidence_of(status: JobStatus) -> Mapping[str, object]:
    """What is kept of a job's end."""
    return {
        **status.evidence,
        "reason": status.reason,
        "pid": status.pid,
        "progress": dict(status.progress or {}),
        **ran(status),
    }


def when(world: World, task: Task, attempt: Attempt, status: JobStatus) -> Mapping[str, Any]:
    """When its host saw it begin and end, by our clock: it may have ended while nobody looked.

    What a host says is held within what we know: after the intention, and before now.
    """
    if not (status.started_at and status.ended_at):
        return {}
    ahead = _ahead(world.store.snapshot().host(attempt.host).facts.get("clock", {}))
    earliest = datetime.fromisoformat(attempt.created_at)
    found = {}
    for name, said in (("started_at", status.started_at), ("ended_at", status.ended_at)):
        earliest = min(max(datetime.fromisoformat(said) - ahead, earliest), world.now())
        if name == "started_at" and attempt.started_at:  # as it was seen to run
            earliest = datetime.fromisoformat(attempt.started_at)
        found[name] = stamp(earliest)
    return found


def _ahead(clock: Mapping[str, Any]) -> timedelta:
    """By how much a host's clock is ahead of ours; nothing, where that is no more than in doubt."""
    offset, doubt = (float(clock.get(name) or 0.0) for name in ("offset_s", "error_s"))
    return timedelta(seconds=offset if abs(offset) > doubt else 0.0)


def ran(status: JobStatus) -> Mapping[str, float]:
    """How long it ran by the host's own clock: it may have ended while nobody looked."""
    if not (status.started_at and status.ended_at):
        return {}
    begun, ended = map(datetime.fromisoformat, (status.started_at, status.ended_at))
    return {RAN_S: max(0.0, (ended - begun).total_seconds())}


def conclude(
    world: World,
    task: Task,
    attempt: Attempt,
    cls: FailureClass,
    reason: str,
    out: Mapping[str, Any],
    checks: Sequence[Mapping[str, Any]],
    results: Sequence[CheckResult],
) -> None:
    """Commits checks, results and verdict in one transaction."""
    ok = cls is FailureClass.OK
    again = None if ok else retries.retry_reason(task, attempt, cls)
    if retries.stopped_by_person(attempt):
        reason = f"{reason}; {TOO_LATE}" if reason else TOO_LATE
    elif not ok and not again:
        again = renewing.retry_reason(world.store.snapshot(), attempt)
    task = world.store.snapshot().task(task.id)  # its checks took their time
    known = {**attempt.detail.get("out", {}), **out}
    # The task keeps those of its last attempt; machines are compared by each one's.
    told = went_well(world, attempt, known) if ok else {WHY: reason}
    with world.store.write(lease=world.lease) as tx:
        asked = zip(checks, results, strict=True) if results else ()
        record_checks(tx, task.id, "done", asked, attempt=attempt.id, epoch=attempt.epoch)
        record_artifacts(tx, attempt)
        if ok:
            tx.set_out(task.id, known)
            keep_decision(tx, task, out)
        tx.move_attempt(
            attempt.id,
            AttemptState.VERIFIED if ok else AttemptState.CHECK_FAILED,
            expect={AttemptState.COLLECTING},
            cls=cls,
            evidence=told,
        )
        tx.move_task(
            task.id, TaskState.DONE if ok else TaskState.FAILED, expect={task.state}, reason=reason
        )
        if again:
            tx.move_task(task.id, TaskState.READY, expect={TaskState.FAILED}, reason=again)
    world.announce(task, TaskState.DONE if ok else TaskState.FAILED, reason, attempt)
    if again:
        wait_before_retry(world, task, attempt)
        world.emit(Info(text=f"{task.id}: {again}"))
    elif cls is FailureClass.CHECK_FAILED and task.definition.get("retry"):
        world.emit(Info(text=f"{task.id}: {NOT_RETRIED}"))


def went_well(world: World, attempt: Attempt, results: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is kept of an attempt that went well: by this, others are estimated."""
    return {OUT: _numbers(results), **_steady(world, attempt)}


def _steady(world: World, attempt: Attempt) -> Mapping[str, float]:
    """At what rate it worked in full swing, by the copy of what it reported."""
    path = world.workspace.log(attempt.id, "progress")
    if not path.is_file() or path.stat().st_size > LONGEST_PROGRESS:
        return {}
    with path.open("rb") as lines:
        found = steady_s(lines)
    return {} if found is None else {STEADY_S: found}


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in results.items() if type(value) in (int, float)}


def record_artifacts(tx: Tx, attempt: Attempt) -> None:
    """What its job said that it made."""
    for row in attempt.evidence.get("artifacts", ()):
        tx.record_artifact(
            attempt.task,
            attempt=attempt.id,
            uri=str(row["uri"]),
            size=int(row["size"]),
            sha256=str(row["sha256"]),
        )


def keep_decision(tx: Tx, task: Task, out: Mapping[str, Any]) -> None:
    """What a task found out that others are to go by, as a decision with its figures."""
    text = out.get(DECISION)
    if isinstance(text, str) and text:
        tx.add_note(text[:LONGEST_DECISION], task=task.id, decision=True)


def record_checks(
    tx: Tx,
    task_id: str,
    purpose: Purpose,
    asked: Iterable[tuple[Mapping[str, Any], CheckResult]],
    *,
    attempt: str | None = None,
    epoch: str | None,
) -> None:
    """Keeps verdicts with their evidence."""
    for check, result in asked:
        tx.record_check(
            task_id,
            attempt=attempt,
            purpose=purpose,
            name=check_name(check),
            spec=check,
            verdict=result.verdict,
            evidence=result.evidence,
            epoch=epoch,
        )


def wait_before_retry(world: World, task: Task, attempt: Attempt) -> None:
    """Starts the pause on our own clock; whoever runs the engine anew has waited already."""
    pause = retries.backoff_s(task.definition.get("retry") or {}, attempt.number)
    if pause:
        world.not_before[task.id] = time.monotonic() + pause


def _first(
    checks: Sequence[Mapping[str, Any]], results: Sequence[CheckResult], verdict: str
) -> str | None:
    """The first check with this verdict, and what was found."""
    for check, result in zip(checks, results, strict=True):
        if result.verdict == verdict:
            return f"check {result.verdict}: {found(check_name(check), result.evidence)}"
    return None


def _attempt(attempts: Sequence[Attempt], attempt_id: str) -> Attempt:
    return next(attempt for attempt in attempts if attempt.id == attempt_id)
