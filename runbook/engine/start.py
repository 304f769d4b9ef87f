"""Starting one ready task: plan, pre-check, record the intention, and only then act."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from remote import Host, RemoteError, Unreachable
from runbook.approvals import question
from runbook.claims import require_free
from runbook.engine import elsewhere
from runbook.engine.epochs import see_host
from runbook.engine.finish import finish
from runbook.engine.handing import take_secrets
from runbook.engine.launching import begin, launch, ports_of
from runbook.engine.planning import make_context, plan_task
from runbook.engine.stopping import stop_service
from runbook.errors import CannotStart
from runbook.steps.base import Check, NoHost, Outcome, StepContext, StepPlan
from state import (
    Attempt,
    AttemptState,
    ClaimHeld,
    FailureClass,
    Snapshot,
    Task,
    TaskState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from runbook.engine.world import World
    from runbook.grants import Issued

FOUND = "found"
"""Key of an attempt's evidence: what an action of the operator's side came to."""


def start(
    world: World,
    snapshot: Snapshot,
    task: Task,
    *,
    fits: Callable[[str], bool],
    began: Callable[[str], None],
) -> None:
    """Starts a ready task, or says why not.

    What the host is asked for beforehand is asked beside the loop, so that a slow or dead one
    keeps no task of another host waiting.

    Args:
        fits: whether the task may still start when all that is known.
        began: called when an attempt of it is committed.
    """
    if not may_begin(world, snapshot, task):
        return

    def done(prepared: Prepared | None) -> None:
        now = world.store.snapshot().task(task.id)
        same = now.state is TaskState.READY and now.definition_hash == task.definition_hash
        if prepared is not None and same and fits(task.id):
            act(world, now, prepared, began)

    def failed(error: Exception) -> None:
        not_prepared(world, task, error)

    try:
        host = world.host_of(snapshot, task) if task.role else None
        if host is None:
            done(prepare(world, task, None))
        else:
            world.background.begin(
                world, start_key(task.id), task.role or "",
                lambda own: prepare(own, task, host), done=done, failed=failed, brief=True,
            )  # fmt: skip
    except (CannotStart, NoHost, RemoteError) as error:
        failed(error)


def start_key(task: str) -> str:
    """Under which the start of a task is under way."""
    return f"start {task}"


def may_begin(world: World, snapshot: Snapshot, task: Task) -> bool:
    """Whether no person has to be asked first."""
    try:
        require_free(world.workspace, snapshot, actor=world.store.actor, tasks=[task.id])
    except ClaimHeld as error:
        world.held.add(task.id)
        world.refuse(task, str(error), error.hint)
        return False
    return not wait_for_person(world, snapshot, task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A start of which all is known that the host had to be asked for."""

    host: Host | None
    epoch: str | None
    context: StepContext
    plan: StepPlan
    issued: Issued
    generation: int | None
    """At least; where a person gave up what another workspace ran."""


def prepare(world: World, task: Task, host: Host | None) -> Prepared | None:
    """The plan of a task, on the host as it is now, with its conditions looked at.

    None: the host was rebooted, and with it went what the task needs.

    Raises:
        CannotStart: one of them does not hold.
    """
    epoch = see_host(world, world.store.snapshot(), task.role, host)
    snapshot = world.store.snapshot()
    if snapshot.task(task.id).state is not TaskState.READY:
        return None
    stop = partial(stop_service, world)
    context = make_context(world, snapshot, task, host=host, stop_task=stop)
    plan = plan_task(task, context)
    generation = None
    if host is not None:
        if plan.job is not None:
            generation = elsewhere.require_ours(world, snapshot, task, host)
        precheck(task, plan, host)
    issued = take_secrets(world, snapshot, task, plan.job.grants if plan.job else ())
    return Prepared(
        host=host, epoch=epoch, context=context, plan=plan, issued=issued, generation=generation
    )


def not_prepared(world: World, task: Task, error: Exception) -> None:
    """Says why a task could not be started."""
    if isinstance(error, Unreachable):
        world.unreachable(task.role or "", error)
    elif isinstance(error, RemoteError):
        world.refuse(task, f"{task.id}: {error}", error.hint)
    elif isinstance(error, (CannotStart, NoHost)):
        world.refuse(task, str(error), getattr(error, "hint", ""))
    else:
        raise error


def act(world: World, task: Task, prepared: Prepared, began: Callable[[str], None]) -> None:
    """Commits the attempt, and does what the plan says."""
    plan, context, host = prepared.plan, prepared.context, prepared.host
    if plan.run is None and (plan.job is None or host is None):
        world.refuse(task, f"{task.id}: the step type `{task.step}` planned nothing to do.")
        return
    if not in_turn(world, task, plan):
        return
    attempt = begin(
        world, task, host_name=context.host_name, epoch=prepared.epoch, plan=plan,
        generation=prepared.generation,
    )  # fmt: skip
    began(task.id)
    if plan.job is not None and host is not None:
        launch(world, task, attempt, host, issued=prepared.issued)
    else:
        run_control(world, task, attempt, plan, context)


def in_turn(world: World, task: Task, plan: StepPlan) -> bool:
    """Whether the server before it on its host had its moment; else it is tried again then."""
    now, role = time.monotonic(), task.role or ""
    if not plan.stagger_s:
        return True
    if now < world.next_server.get(role, 0.0):
        world.not_before[task.id] = world.next_server[role]
        return False
    world.next_server[role] = now + plan.stagger_s
    return True


def wait_for_person(world: World, snapshot: Snapshot, task: Task) -> bool:
    """Moves a task that needs a person's yes to `gated`; False when it needs none, or has it."""
    asked = question(snapshot, task, world.now())
    if asked:
        world.move(task, TaskState.GATED, reason=asked)
    return bool(asked)


def precheck(task: Task, plan: StepPlan, host: Host) -> None:
    """What must hold before a launch, such as a free port.

    Raises:
        CannotStart: one of them does not hold.
    """
    ports = ports_of(task, plan)
    named = {check["port_free"]["port"] for check in plan.precheck if "port_free" in check}
    checks: list[Check] = [
        *plan.precheck,
        *({"port_free": {"port": port}} for port in ports if port not in named),
    ]
    if not checks:
        return
    for check, result in zip(checks, host.check(checks), strict=True):
        if result.verdict != "pass":
            raise CannotStart(*_cannot(task, check, result.evidence))


def _cannot(task: Task, check: Check, evidence: Mapping[str, Any]) -> tuple[str]:
    ((name, args),) = check.items()
    if name == "port_free":
        owner = evidence.get("owner") or evidence.get("listeners") or "another program"
        text = (
            f"Cannot start `{task.id}`: port {args['port']} is taken by {owner}. "
            f"Free it, or choose another port in runbook.yaml; then `runbook run`."
        )
    else:
        text = f"Cannot start `{task.id}`: {name} {dict(args)} does not hold: {dict(evidence)}"
    return (text,)


def run_control(
    world: World, task: Task, attempt: Attempt, plan: StepPlan, context: StepContext
) -> None:
    """Runs an action of the operator's side beside the loop: an upload takes its time."""
    run = plan.run
    assert run is not None
    world.move_attempt(attempt, AttemptState.RUNNING)

    def act(own: World) -> Outcome:
        try:
            snapshot = own.store.snapshot()
            host = own.host_of(snapshot, task) if task.role else None
            stop = partial(stop_service, own)
            return run(make_context(own, snapshot, task, host=host, stop_task=stop))
        except (RemoteError, CannotStart, OSError) as error:
            return Outcome(ok=False, evidence={"error": str(error)}, message=str(error))

    def done(outcome: Outcome) -> None:
        out = {**plan.out, **outcome.out}
        found = {"ok": outcome.ok, "message": outcome.message, "out": out}
        finish(
            world,
            task.id,
            attempt.id,
            cls=FailureClass.OK if outcome.ok else FailureClass.EXIT,
            reason=outcome.message,
            out=out,
            # With what it found, its checks can be asked by another engine.
            evidence={**outcome.evidence, FOUND: found},
        )

    def failed(error: Exception) -> None:
        raise error

    world.background.begin(
        world, attempt.id, context.host_name, act, done=done, failed=failed, keep=True
    )
