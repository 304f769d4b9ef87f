"""Stopping an attempt for certain: the intention first, then the host, then what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from remote import Host, StopReport
from runbook.engine.events import Info
from runbook.engine.finish import evidence_of, wait_before_retry, when
from runbook.reasons import CLASS_OF_STOP, WHY_STOPPED
from runbook.retries import retry_reason
from state import Attempt, AttemptState, FailureClass, Snapshot, Task, TaskKind, TaskState
from state.transitions import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runbook.engine.world import World

State = TypeVar("State", AttemptState, TaskState)
ON_ITS_WAY = frozenset(
    {AttemptState.INTENDED, AttemptState.PUBLISHED, AttemptState.STARTED, AttemptState.RUNNING}
)
UP = frozenset({TaskState.STARTING, TaskState.SERVING, TaskState.UNHEALTHY})
"""Of a server, that may go on serving."""


def stop_attempt(
    world: World,
    task: Task,
    attempt: Attempt,
    host: Host,
    *,
    then: TaskState,
    reason: str,
    cls: FailureClass = FailureClass.STOPPED,
    again: str | None = None,
) -> StopReport:
    """Stops one attempt and verifies that nothing of it is left.

    A job that had ended before the stop reached its host keeps its own outcome: whoever advances
    the graph records it.

    Args:
        again: why it is tried again by itself, once it has failed by this.
        then: where the task goes once the stop is verified: `gated` for a person's stop, which only
            a person takes back. With survivors it goes to `attention`.
    """
    _mark_stopping(world, task, attempt, reason, cls)
    job = attempt.detail.get("job") or {}
    report = host.stop(
        attempt.id, grace_s=float(job.get("grace_s", 20)), ports=tuple(job.get("ports", ()))
    )
    if ended_before(task, report):
        ended = host.poll([attempt.id])[attempt.id]
        with world.store.write(lease=world.lease) as tx:
            tx.move_attempt(
                attempt.id,
                AttemptState.EXITED,
                expect={AttemptState.STOPPING},
                exit_code=ended.exit_code,
                signal=ended.signal,
                evidence=evidence_of(ended),
                **when(world, task, attempt, ended),
            )
        return report
    current = world.store.snapshot().task(task.id)
    stopped = report.state == "stopped"
    to = then if stopped else TaskState.ATTENTION
    why = reason if stopped else f"stop incomplete, still there: {survivors(report)}"
    with world.store.write(lease=world.lease) as tx:
        tx.move_attempt(
            attempt.id,
            AttemptState.STOPPED if stopped else AttemptState.STOP_INCOMPLETE,
            expect={AttemptState.STOPPING},
            cls=cls,
            evidence={**report.evidence, "survivors": [dict(s) for s in report.survivors]},
        )
        if to is TaskState.GATED:  # it would be ready to run again, but for the person's stop
            tx.move_task(task.id, TaskState.READY, expect={current.state}, reason=why)
            tx.move_task(task.id, TaskState.GATED, expect={TaskState.READY}, reason=why)
        else:
            tx.move_task(task.id, to, expect={current.state}, reason=why)
        if again and to is TaskState.FAILED:
            tx.move_task(task.id, TaskState.READY, expect={TaskState.FAILED}, reason=again)
    world.announce(task, to, why, attempt)
    return report


def _mark_stopping(
    world: World, task: Task, attempt: Attempt, reason: str, cls: FailureClass
) -> None:
    """Recorded before the host is asked: whoever comes after us sees the stop through."""
    draining = task.kind is TaskKind.SERVICE and task.state is not TaskState.DRAINING
    with world.store.write(lease=world.lease) as tx:
        if attempt.state is not AttemptState.STOPPING:
            tx.move_attempt(
                attempt.id,
                AttemptState.STOPPING,
                expect=_as_seen(attempt.state, ON_ITS_WAY),
                evidence={WHY_STOPPED: reason, CLASS_OF_STOP: cls.value},
            )
        if draining:
            seen = _as_seen(task.state, UP)
            tx.move_task(task.id, TaskState.DRAINING, expect=seen, reason=reason)
    if draining:
        world.announce(task, TaskState.DRAINING, reason)


def _as_seen(state: State, alike: frozenset[State]) -> frozenset[State]:
    """The state, or any other that whoever looks at the job may have found it in since."""
    return alike if state in alike else frozenset({state})


def ended_before(task: Task, report: StopReport) -> bool:
    """Whether the stop found a job that had ended by itself, with nothing left of it."""
    found = report.evidence
    alone = found.get("before") == "exited" and found.get("cls") != FailureClass.STOPPED.value
    return task.kind is TaskKind.ONCE and report.state == "stopped" and alone


def stop_beside(
    world: World,
    task: Task,
    attempt: Attempt,
    *,
    then: TaskState,
    reason: str,
    cls: FailureClass = FailureClass.STOPPED,
) -> None:
    """As `stop_attempt`, beside the loop: the grace of one job must not blind us to the others."""
    snapshot = world.store.snapshot()
    again = retry_reason(task, attempt, cls) if then is TaskState.FAILED else None

    def stop(own: World) -> StopReport:
        host = own.host_with(snapshot, attempt)
        return stop_attempt(
            own, task, attempt, host, then=then, reason=reason, cls=cls, again=again
        )

    def done(report: StopReport) -> None:
        if again and report.state == "stopped" and not ended_before(task, report):
            world.emit(Info(text=f"{task.id}: {again}"))

    if again:
        wait_before_retry(world, task, attempt)
    world.background.begin(
        world, attempt.id, attempt.host, stop,
        done=done, failed=lambda error: world.silent(attempt, error), keep=True,
    )  # fmt: skip


def survivors(report: StopReport) -> str:
    """The survivors of a stop in one line, with what they hold."""
    return ", ".join(_survivor(row) for row in report.survivors)


def _survivor(row: Mapping[str, Any]) -> str:
    if not row.get("pid"):
        return str(dict(row))
    holds = "; ".join(
        ", ".join(f"{name} {value}" for name, value in one.items()) for one in row.get("holds", ())
    )
    name = row.get("name") or row.get("command") or "?"
    return f"pid {row['pid']} ({name})" + (f" holding {holds}" if holds else "")


def stop_service(world: World, task_id: str) -> StopReport:
    """Stops a service that has served its purpose; its task is then done."""
    snapshot = world.store.snapshot()
    task = snapshot.task(task_id)
    attempt = live_attempt(snapshot, task)
    if attempt is None:
        return StopReport(state="stopped", survivors=(), evidence={"already": task.state.value})
    host = world.host_with(snapshot, attempt)
    return stop_attempt(world, task, attempt, host, then=TaskState.DONE, reason="")


def live_attempt(snapshot: Snapshot, task: Task) -> Attempt | None:
    """The newest attempt, if anything of it may still run."""
    attempt = snapshot.latest_attempt(task.id)
    return attempt if attempt is not None and attempt.state not in TERMINAL else None
