"""Services: ready only when alive, healthy, the right one, and able to generate."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from remote import CheckResult
from runbook.check_words import check_name
from runbook.engine.draining import drain, set_draining
from runbook.engine.events import Problem
from runbook.engine.finish import record_checks
from runbook.engine.load import watch
from runbook.engine.logs import end_of_logs
from runbook.engine.stopping import stop_beside
from runbook.serving.diagnosis import diagnose, will_never_serve
from runbook.serving.health import Watched
from state import Attempt, AttemptState, FailureClass, Task, TaskState

if TYPE_CHECKING:
    from remote import Host
    from runbook.engine.world import World

Found = tuple[str | None, Sequence[tuple[Mapping[str, Any], CheckResult]]]

READY_WITHIN_S = 900.0
LOOK_EVERY_S = 2.0
SLOW_CHECKS = frozenset({"http_generate"})
"""Asked only once everything cheaper has passed."""


def look(world: World, task: Task, attempt: Attempt) -> None:
    """What a service needs now, by its state."""
    if task.state is TaskState.STARTING:
        await_ready(world, task, attempt)
    elif task.state in (TaskState.SERVING, TaskState.UNHEALTHY):
        watch(world, task, attempt)
    elif task.state is TaskState.DRAINING and attempt.state is not AttemptState.STOPPING:
        drain(world, task, attempt)


def await_ready(world: World, task: Task, attempt: Attempt) -> None:
    """Takes a starting service to `serving` once all its checks pass, or fails it in time."""
    now = time.monotonic()
    started = world.starting_since.setdefault(attempt.id, now)
    if now < world.next_look.get(attempt.id, 0.0):
        return
    world.next_look[attempt.id] = now + LOOK_EVERY_S
    snapshot = world.store.snapshot()

    def done(found: Found) -> None:
        missing, results = found
        if missing is None:
            serving(world, task, attempt, results)
            return
        within = float(attempt.detail.get("ready_within_s") or READY_WITHIN_S)
        late = time.monotonic() - started > within
        log = end_of_logs(world.workspace, attempt.id)
        if world.may_start and (late or will_never_serve(log)):
            why = diagnose(log)
            when = f"not ready within {within:.0f} s: {missing}" if late else "it will never serve"
            reason = when + (f"; {why.said}" if why else "")
            world.emit(Problem(text=f"{task.id}: {reason}", hint="It is stopped.", task=task.id))
            cls = FailureClass.TIME_LIMIT if late else FailureClass.EXIT
            stop_beside(world, task, attempt, then=TaskState.FAILED, reason=reason, cls=cls)

    world.background.begin(
        world,
        attempt.id,
        attempt.host,
        lambda own: ask(own.host_with(snapshot, attempt), attempt),
        done=done,
        failed=lambda error: world.silent(attempt, error),
    )


def ask(host: Host, attempt: Attempt) -> Found:
    """Runs the readiness checks; what is missing, or None with all results."""
    checks = attempt.detail.get("ready_when") or []
    cheap = [check for check in checks if not SLOW_CHECKS & set(check)]
    slow = [check for check in checks if SLOW_CHECKS & set(check)]
    results: list[tuple[Mapping[str, Any], CheckResult]] = []
    for group in (cheap, slow):
        if not group:
            continue
        answers = host.check(group, attempt=attempt.id, timeout=120)
        for check, answer in zip(group, answers, strict=True):
            if answer.verdict != "pass":
                return f"{check_name(check)} {answer.verdict}: {dict(answer.evidence)}", []
            results.append((check, answer))
    set_draining(host, attempt, on=False)
    return None, results


def serving(
    world: World,
    task: Task,
    attempt: Attempt,
    results: Sequence[tuple[Mapping[str, Any], CheckResult]],
) -> None:
    """All its checks passed."""
    with world.store.write(lease=world.lease) as tx:
        record_checks(tx, task.id, "ready", results, attempt=attempt.id, epoch=attempt.epoch)
        tx.set_out(task.id, {**attempt.detail.get("out", {})})
        tx.move_task(task.id, TaskState.SERVING, expect={TaskState.STARTING})
    world.watched[attempt.id] = Watched(looked_at=time.monotonic(), probed_at=time.monotonic())
    world.announce(task, TaskState.SERVING, "", attempt)
