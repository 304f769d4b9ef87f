"""Starting one ready task: plan, pre-check, record the intention, and only then act.

The order is what makes a kill at any point harmless: the attempt is committed with all that a
second launch needs before the host hears of it, and the host starts an attempt at most once.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from remote import Host, HostFenceHeld, JobSpec, RemoteError, Unreachable
from runbook.approvals import question
from runbook.claims import require_free
from runbook.engine.epochs import see_host
from runbook.engine.finish import finish
from runbook.engine.handing import Issued, take_secrets, with_secrets
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
    TaskKind,
    TaskState,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runbook.engine.world import World

MEMBER_MARKS = str.maketrans({"[": ".", "]": None, "@": ".", ",": "."})
FOUND = "found"
"""Key of an attempt's evidence: what an action of the operator's side came to."""
CONTROL = "control"
"""Key of an attempt's detail: the step acts from the operator's side, there is no job."""


def start(world: World, snapshot: Snapshot, task: Task) -> bool:
    """Starts a ready task; False when it could not be, which has then been said."""
    try:
        require_free(world.workspace, snapshot, actor=world.store.actor, tasks=[task.id])
    except ClaimHeld as error:
        world.refuse(task, str(error), error.hint)
        return False
    if wait_for_person(world, snapshot, task):
        return False
    try:
        host = world.host_of(snapshot, task) if task.role else None
        epoch = see_host(world, snapshot, task.role, host)
        snapshot = world.store.snapshot()
        if snapshot.task(task.id).state is not TaskState.READY:
            return False  # its host was rebooted, and with it went what the task needs
        context = make_context(
            world, snapshot, task, host=host, stop_task=partial(stop_service, world)
        )
        plan = plan_task(task, context)
        if not in_turn(world, task, plan):
            return False
        if host is not None:
            precheck(task, plan, host)
        issued = take_secrets(world, snapshot, task, plan.job.grants if plan.job else ())
    except (CannotStart, NoHost) as error:
        world.refuse(task, str(error), getattr(error, "hint", ""))
        return False
    except Unreachable as error:
        world.unreachable(snapshot, task.role or "", error)
        return False
    except RemoteError as error:
        world.refuse(task, f"{task.id}: {error}", error.hint)
        return False
    if plan.job is not None and host is not None:
        attempt = begin(world, task, host_name=context.host_name, epoch=epoch, plan=plan)
        launch(world, task, attempt, host, issued=issued)
        return True
    if plan.run is not None:
        attempt = begin(world, task, host_name=context.host_name, epoch=epoch, plan=plan)
        run_control(world, task, attempt, plan, context)
        return True
    world.refuse(task, f"{task.id}: the step type `{task.step}` planned nothing to do.")
    return False


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


def ports_of(task: Task, plan: StepPlan) -> tuple[int, ...]:
    """The ports that the step uses and those that the task reserves."""
    reserved = (name.partition(":") for name in task.resources)
    own = (int(number) for kind, _, number in reserved if kind == "port")
    return tuple(sorted({*(plan.job.ports if plan.job else ()), *own}))


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


def begin(
    world: World, task: Task, *, host_name: str, epoch: str | None, plan: StepPlan
) -> Attempt:
    """Commits the intention: a new attempt with all that a later client needs to go on with it."""
    detail: dict[str, Any] = {
        "summary": list(plan.summary),
        "done_when": _plain(plan.done_when),
        "ready_when": _plain(plan.ready_when),
        "ready_within_s": plan.ready_within_s,
        **({"watch": dict(plan.watch)} if plan.watch else {}),
        "out": dict(plan.out),
    }
    if plan.job is None:
        detail[CONTROL] = True
    else:
        detail["job"] = {
            "argv": list(plan.job.argv),
            "env": dict(plan.job.env),
            "cwd": plan.job.cwd,
            "time_limit_s": plan.job.time_limit_s or task.definition.get("timeout_s"),
            "ports": list(ports_of(task, plan)),
            "gpus": [name for name in task.resources if name.startswith("gpu:")],
            "grace_s": plan.job.grace_s,
            "secrets": list(task.definition.get("secrets") or ()),
            "grants": [dict(grant) for grant in plan.job.grants],
        }
    to = TaskState.STARTING if task.kind is TaskKind.SERVICE else TaskState.ACTIVE
    with world.store.write(lease=world.lease) as tx:
        # A task with a lost attempt is ready only by somebody's decision to supersede it.
        attempt = tx.create_attempt(
            task.id, host=host_name, epoch=epoch, detail=detail, supersede=True
        )
        tx.move_task(task.id, to, expect={task.state})
    world.announce(task, to)
    return attempt


def _plain(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [{name: dict(args)} for check in checks for name, args in check.items()]


def spec_of(attempt: Attempt) -> JobSpec:
    """The launch of an attempt, the same however often it is asked for."""
    job = attempt.detail["job"]
    return JobSpec(
        attempt=attempt.id,
        task=host_name_of(attempt.task),
        generation=attempt.generation,
        argv=tuple(job["argv"]),
        env=job["env"],
        cwd=job["cwd"],
        time_limit_s=job["time_limit_s"],
        ports=tuple(job["ports"]),
        resources=tuple(job.get("gpus", ())),
        grace_s=job["grace_s"],
    )


def host_name_of(task_id: str) -> str:
    """The task's name in folders and variables of the host: `make[3]` is `make.3` there."""
    return task_id.translate(MEMBER_MARKS)


def launch(
    world: World, task: Task, attempt: Attempt, host: Host, *, issued: Issued | None = None
) -> None:
    """Asks the host to run the attempt. Safe to repeat: it starts at most once."""
    try:
        host.launch(with_secrets(world, attempt, spec_of(attempt), issued))
    except CannotStart as error:
        world.refuse(task, f"{task.id}: not launched: {error}", error.hint)
    except Unreachable as error:
        world.unreachable(world.store.snapshot(), task.role or "", error)
    except RemoteError as error:
        held = isinstance(error, HostFenceHeld)
        world.move(
            world.store.snapshot().task(task.id),
            TaskState.ATTENTION if held else TaskState.FAILED,
            reason=f"held on the host: {error} ({error.hint})" if held else f"not started: {error}",
            attempt=attempt,
            attempt_to=AttemptState.NEVER_STARTED,
            cls=FailureClass.NEVER_STARTED,
            evidence={"error": str(error), "hint": error.hint},
        )


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
