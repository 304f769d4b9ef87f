"""Looking after servers that serve: their load, and whether they work or only answer.

Each is asked on its own host and judged by itself: what one of them does is no reason to touch
another. Which answer means what is decided in `runbook.serving.health`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from remote import CheckResult
from runbook.engine.events import Problem
from runbook.engine.finish import record_checks
from runbook.engine.stopping import stop_beside
from runbook.retries import retry_reason
from runbook.serving.health import Patience, Watched, judge, load_text, question
from state import Attempt, FailureClass, Task, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from remote import Host
    from runbook.engine.world import World

LOOKED_AFTER = frozenset({TaskState.SERVING, TaskState.UNHEALTHY})
WEDGED_CLASS = FailureClass.TIME_LIMIT
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
        current = world.store.snapshot()
        newest, now_is = current.latest_attempt(task.id), current.task(task.id)
        if newest is None or newest.id != attempt.id or now_is.state not in LOOKED_AFTER:
            return  # it ended, or is being stopped, since it was asked
        found = dict(result.evidence)
        after, condition, why = judge(known, found, patience, time.monotonic())
        world.watched[attempt.id] = after
        world.loads[attempt.id] = load_text(found, after)
        _tell_public(world, task, found)
        if why and condition == "doubted":
            hint = "One such answer proves nothing; it is asked again."
            world.warn_once(("doubt", attempt.id), f"{task.id}: {why}", hint, task.id)
        if condition == "wedged":
            if now_is.state is TaskState.SERVING:
                now_is = unhealthy(world, now_is, attempt, why, asked, result)
            restart_by_policy(world, now_is, attempt)
        elif condition == "well" and now_is.state is TaskState.UNHEALTHY:
            world.move(now_is, TaskState.SERVING, reason="it answers again")

    ask_load(world, task, attempt, asked, done=done)


def unhealthy(
    world: World,
    task: Task,
    attempt: Attempt,
    why: str,
    asked: Mapping[str, Any],
    result: CheckResult,
) -> Task:
    """It lives and does no work: said, with what was seen as evidence."""
    reason = f"wedged: {why}"
    check = {"server_load": {**attempt.detail["watch"], **asked}}
    failed = CheckResult(verdict="fail", evidence=result.evidence)
    with world.store.write(lease=world.lease) as tx:
        record_checks(
            tx, task.id, "ready", [(check, failed)], attempt=attempt.id, epoch=attempt.epoch
        )
        tx.move_task(task.id, TaskState.UNHEALTHY, expect={task.state}, reason=reason)
    world.announce(task, TaskState.UNHEALTHY, reason, attempt)
    if retry_reason(task, attempt, WEDGED_CLASS) is None:
        name = quote(task.id)
        hint = f"Look: `runbook logs {name}`; then `runbook restart {name}`, it alone."
        world.emit(Problem(text=f"{task.id}: {reason}", hint=hint, task=task.id))
    return world.store.snapshot().task(task.id)


def restart_by_policy(world: World, task: Task, attempt: Attempt) -> None:
    """Stops an unhealthy server whose task is to be tried again; the others are not touched."""
    if retry_reason(task, attempt, WEDGED_CLASS) is not None:
        then, reason = TaskState.FAILED, task.reason
        stop_beside(world, task, attempt, then=then, reason=reason, cls=WEDGED_CLASS)


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
        host = own.host_with(snapshot, attempt)
        if before is not None:
            before(host)
        return host.check([{"server_load": about}], timeout=limit)[0]

    world.background.begin(
        world,
        f"load {attempt.id}",
        attempt.host,
        load,
        done=done,
        failed=lambda error: world.silent(attempt, error),
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
