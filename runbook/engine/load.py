"""Looking after servers that serve: their load, and whether they work or only answer.

Each is asked on its own host and judged by itself: what one of them does is no reason to touch
another. Which answer means what is decided in `runbook.serving.health`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote import CheckResult
from runbook.engine.events import Problem
from runbook.engine.finish import record_checks, retry_reason
from runbook.engine.stopping import stop_beside
from runbook.serving.health import Patience, Watched, judge, load_text, question
from state import Attempt, FailureClass, Task, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from remote import Host
    from runbook.engine.world import World

LOAD_S = 15.0
"""For a look at the load, besides the patience of its probe."""


def patience_of(attempt: Attempt) -> Patience:
    """As its task says."""
    watch = attempt.detail.get("watch") or {}
    return Patience(**{key: watch[key] for key in Patience.__dataclass_fields__ if key in watch})


def watch(world: World, task: Task, attempt: Attempt) -> None:
    """Asks a server for its load, and moves it between `serving` and `unhealthy`."""
    if not attempt.detail.get("watch") or not world.may_start:
        return
    patience = patience_of(attempt)
    known = world.watched.setdefault(attempt.id, Watched())
    if task.state is TaskState.UNHEALTHY and known.ready:
        known = replace(known, ready=False)  # another engine found it so
    asked = question(known, patience, time.monotonic())
    if asked is None:
        return

    def done(result: CheckResult) -> None:
        found = dict(result.evidence)
        after, condition, why = judge(known, found, patience, time.monotonic())
        world.watched[attempt.id] = after
        world.loads[attempt.id] = load_text(found, after)
        _tell_public(world, task, found)
        if why and condition == "doubted":
            world.warn_once(("doubt", attempt.id, str(after.strikes)), f"{task.id}: {why}")
        current = world.store.snapshot().task(task.id)
        if condition == "wedged" and current.state is TaskState.SERVING:
            unhealthy(world, current, attempt, why, asked, result)
        elif condition == "well" and current.state is TaskState.UNHEALTHY:
            world.move(current, TaskState.SERVING, reason="it answers again")

    ask_load(world, task, attempt, asked, done=done)


def unhealthy(
    world: World,
    task: Task,
    attempt: Attempt,
    why: str,
    asked: Mapping[str, Any],
    result: CheckResult,
) -> None:
    """It lives and does no work: kept as evidence, and restarted when its policy says so."""
    reason = f"wedged: {why}"
    check = {"server_load": {**attempt.detail["watch"], **asked}}
    failed = CheckResult(verdict="fail", evidence=result.evidence)
    with world.store.write(lease=world.lease) as tx:
        record_checks(
            tx, task.id, "ready", [(check, failed)], attempt=attempt.id, epoch=attempt.epoch
        )
        tx.move_task(task.id, TaskState.UNHEALTHY, expect={task.state}, reason=reason)
    world.announce(task, TaskState.UNHEALTHY, reason, attempt)
    cls = FailureClass.TIME_LIMIT
    if retry_reason(task, attempt, cls) is None:
        hint = f"Look: `runbook logs {task.id}`; then `runbook restart {task.id}`, it alone."
        world.emit(Problem(text=f"{task.id}: {reason}", hint=hint, task=task.id))
        return
    current = world.store.snapshot().task(task.id)
    stop_beside(world, current, attempt, then=TaskState.FAILED, reason=reason, cls=cls)


def ask_load(
    world: World,
    task: Task,
    attempt: Attempt,
    asked: Mapping[str, Any],
    *,
    done: Callable[[CheckResult], None],
    before: Callable[[Host], None] | None = None,
) -> None:
    """Asks a server for its load, beside the loop."""
    snapshot = world.store.snapshot()
    about = {**attempt.detail["watch"], **asked}
    limit = float(asked.get("timeout_s", 0)) + LOAD_S

    def load(own: World) -> CheckResult:
        host = own.host_of(snapshot, task)
        if before is not None:
            before(host)
        return host.check([{"server_load": about}], timeout=limit)[0]

    world.background.begin(
        world,
        f"load {attempt.id}",
        task.role or "",
        load,
        done=done,
        failed=lambda error: world.silent(snapshot, task, error),
        aside=task.state is TaskState.SERVING,
    )


def _tell_public(world: World, task: Task, found: Mapping[str, Any]) -> None:
    ports = ", ".join(str(port) for port in found.get("public") or ())
    if ports:
        world.warn_once(
            ("public", task.id, ports),
            f"{task.id}: port {ports} listens on all interfaces, not on loopback alone.",
            "SGLang's rendezvous port does so whatever it is told: see that the machine's "
            "firewall closes it.",
            task.id,
        )
