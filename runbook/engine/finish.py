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
        results = host.check(checks, attempt=attempt.id)
        failed = _first_failed(checks, results)
        if failed:
            cls, reason = FailureClass.CHECK_FAILED, failed
    conclude(world, task, attempt, cls, reason, out, checks, results)


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
        for item in attempt_artifacts(tx_evidence(attempt, out)):
            tx.record_artifact(task.id, attempt=attempt.id, **item)
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


def tx_evidence(attempt: Attempt, out: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a step leaves the artifacts it made: in its evidence, or in its results."""
    return {"artifacts": attempt.evidence.get("artifacts") or out.get("artifacts") or ()}


def attempt_artifacts(evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The artifacts of an attempt as the store takes them."""
    return [
        {"uri": str(row["uri"]), "size": int(row["size"]), "sha256": str(row["sha256"])}
        for row in evidence["artifacts"]
    ]


def check_name(check: Mapping[str, Any]) -> str:
    """A check in a few words: its kind and what it looks at."""
    ((kind, args),) = check.items()
    about = [
        str(args[key]) for key in ("key", "path", "glob", "url", "port", "python") if key in args
    ]
    return " ".join([kind, *about[:2]])


def _first_failed(
    checks: Sequence[Mapping[str, Any]], results: Sequence[CheckResult]
) -> str | None:
    for check, result in zip(checks, results, strict=True):
        if result.verdict != "pass":
            found = result.evidence.get("message") or result.evidence.get("found") or ""
            said = f": {found}" if found else f": {dict(result.evidence)}"
            return f"check {result.verdict}: {check_name(check)}{said}"
    return None


def _attempt(attempts: Sequence[Attempt], attempt_id: str) -> Attempt:
    return next(attempt for attempt in attempts if attempt.id == attempt_id)
