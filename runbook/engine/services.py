"""Services: ready only when alive, healthy, the right one, and able to generate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from runbook.engine.events import Problem
from runbook.engine.finish import check_name, record_checks
from runbook.engine.stopping import stop_attempt
from state import Attempt, FailureClass, Task, TaskState

if TYPE_CHECKING:
    from remote import Host
    from runbook.engine.world import World

READY_WITHIN_S = 900.0
LOOK_EVERY_S = 2.0
SLOW_CHECKS = frozenset({"http_generate"})
"""Asked only once everything cheaper has passed."""


def look(world: World, task: Task, attempt: Attempt, host: Host) -> None:
    """Takes a starting service to `serving` once all its checks pass, or fails it in time."""
    if task.state is not TaskState.STARTING:
        return
    now = time.monotonic()
    started = world.starting_since.setdefault(attempt.id, now)
    if now < world.next_look.get(attempt.id, 0.0):
        return
    world.next_look[attempt.id] = now + LOOK_EVERY_S
    waiting_for = ask(world, task, attempt, host)
    if waiting_for is None:
        return
    within = float(attempt.detail.get("ready_within_s") or READY_WITHIN_S)
    if now - started > within:
        reason = f"not ready within {within:.0f} s: {waiting_for}"
        world.emit(Problem(text=f"{task.id}: {reason}", hint="It is being stopped.", task=task.id))
        stop_attempt(
            world,
            task,
            attempt,
            host,
            then=TaskState.FAILED,
            reason=reason,
            cls=FailureClass.TIME_LIMIT,
        )


def ask(world: World, task: Task, attempt: Attempt, host: Host) -> str | None:
    """Runs the readiness checks; None when all pass (then recorded), else what is missing."""
    checks = attempt.detail.get("ready_when") or []
    cheap = [check for check in checks if not SLOW_CHECKS & set(check)]
    slow = [check for check in checks if SLOW_CHECKS & set(check)]
    results = []
    for group in (cheap, slow):
        if not group:
            continue
        answers = host.check(group, attempt=attempt.id, timeout=120)
        for check, answer in zip(group, answers, strict=True):
            if answer.verdict != "pass":
                return f"{check_name(check)} {answer.verdict}: {dict(answer.evidence)}"
            results.append((check, answer))
    with world.store.write(lease=world.lease) as tx:
        record_checks(tx, task.id, "ready", results, attempt=attempt.id, epoch=attempt.epoch)
        tx.set_out(task.id, {**attempt.detail.get("out", {})})
        tx.move_task(task.id, TaskState.SERVING, expect={TaskState.STARTING})
    world.announce(task, TaskState.SERVING, "", attempt)
    return None
