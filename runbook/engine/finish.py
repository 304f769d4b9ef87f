"""The end of an attempt: results collected, checks run, and only then a verdict on the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runbook.engine.events import Info
from state import Attempt, AttemptState, FailureClass, Task, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from remote import CheckResult, Host
    from runbook.engine.world import World
    from state import Purpose, Tx

CHECK_TRIES = 3
"""How often checks are asked while one of them has no answer, such as on a slow disk."""
CHECK_LIMIT_S = 900.0
"""For all checks of a task together: a manifest of a large model is read whole."""
NEVER_RETRIED = frozenset({FailureClass.OOM, FailureClass.CHECK_FAILED, FailureClass.STOPPED})
"""Unchanged, these end the same way; a person looks first."""


def finish(
    world: World,
    task_id: str,
    attempt_id: str,
    *,
    cls: FailureClass,
    reason: str = "",
    out: Mapping[str, Any],
    evidence: Mapping[str, Any],
    host: Host | None,
    **outcome: Any,
) -> None:
    """Takes an ended attempt to its verdict. Resumable: each commit leaves a state to go on from.

    Args:
        cls: `ok` when it ended well; then the checks decide.
        host: where its checks run; None for a task without a host.
        outcome: exit code and signal of the attempt, where there are any.
    """
    collecting(world, task_id, attempt_id, evidence=evidence, **outcome)
    snapshot = world.store.snapshot()
    task, attempt = snapshot.task(task_id), _attempt(snapshot.attempts_of(task_id), attempt_id)
    checks = attempt.detail.get("done_when") or []
    results: Sequence[CheckResult] = ()
    if cls is FailureClass.OK and checks and host is not None:
        results = ask(host, checks, attempt)
        failed = _first(checks, results, "fail")
        if failed:
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
        asked = zip(checks, results, strict=True)
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
) -> None:
    """Commits that the attempt ended and is being looked at."""
    snapshot = world.store.snapshot()
    task, attempt = snapshot.task(task_id), _attempt(snapshot.attempts_of(task_id), attempt_id)
    with world.store.write(lease=world.lease) as tx:
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
        if task.state is TaskState.ACTIVE:
            tx.move_task(task.id, TaskState.VERIFYING, expect={TaskState.ACTIVE})


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
    again = None if ok else retry_reason(task, attempt, cls)
    with world.store.write(lease=world.lease) as tx:
        asked = zip(checks, results, strict=True) if results else ()
        record_checks(tx, task.id, "done", asked, attempt=attempt.id, epoch=attempt.epoch)
        for row in attempt.evidence.get("artifacts", ()):
            tx.record_artifact(
                task.id,
                attempt=attempt.id,
                uri=str(row["uri"]),
                size=int(row["size"]),
                sha256=str(row["sha256"]),
            )
        if ok:
            tx.set_out(task.id, {**attempt.detail.get("out", {}), **out})
        tx.move_attempt(
            attempt.id,
            AttemptState.VERIFIED if ok else AttemptState.CHECK_FAILED,
            expect={AttemptState.COLLECTING},
            cls=cls,
        )
        tx.move_task(
            task.id, TaskState.DONE if ok else TaskState.FAILED, expect={task.state}, reason=reason
        )
        if again:
            tx.move_task(task.id, TaskState.READY, expect={TaskState.FAILED}, reason=again)
    world.announce(task, TaskState.DONE if ok else TaskState.FAILED, reason, attempt)
    if again:
        world.emit(Info(text=f"{task.id}: {again}"))


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


def retry_reason(task: Task, attempt: Attempt, cls: FailureClass) -> str | None:
    """Why the task is tried again by itself, or None."""
    policy = task.definition.get("retry") or {}
    allowed = int(policy.get("max", 0))
    if cls in NEVER_RETRIED or cls.value not in policy.get("on", ()) or attempt.number > allowed:
        return None
    return f"retry {attempt.number} of {allowed} after {cls.value}"


def check_name(check: Mapping[str, Any]) -> str:
    """A check in a few words: its kind and what it looks at."""
    ((kind, args),) = check.items()
    about = [
        str(args[key]) for key in ("key", "path", "glob", "url", "port", "python") if key in args
    ]
    return " ".join([kind, *about[:2]])


def _first(
    checks: Sequence[Mapping[str, Any]], results: Sequence[CheckResult], verdict: str
) -> str | None:
    """The first check with this verdict, and what was found."""
    for check, result in zip(checks, results, strict=True):
        if result.verdict == verdict:
            found = result.evidence.get("message") or result.evidence.get("found") or ""
            said = f": {found}" if found else f": {dict(result.evidence)}"
            return f"check {result.verdict}: {check_name(check)}{said}"
    return None


def _attempt(attempts: Sequence[Attempt], attempt_id: str) -> Attempt:
    return next(attempt for attempt in attempts if attempt.id == attempt_id)
