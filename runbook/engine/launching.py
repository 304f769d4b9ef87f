"""An attempt on its way to the host: the intention is committed, then the host is asked to run it.

The order is what makes a kill at any point harmless: the attempt is committed with all that a
second launch needs before the host hears of it, and the host starts an attempt at most once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote import Host, HostFenceHeld, JobSpec, RemoteError, Unreachable
from runbook.engine import elsewhere
from runbook.engine.handing import with_secrets
from runbook.errors import CannotStart
from state import Attempt, AttemptState, FailureClass, Task, TaskKind, TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runbook.engine.world import World
    from runbook.grants import Issued
    from runbook.steps.base import Check, StepPlan

CONTROL = "control"
"""Key of an attempt's detail: the step acts from the operator's side, there is no job."""


def ports_of(task: Task, plan: StepPlan) -> tuple[int, ...]:
    """The ports that the step uses and those that the task reserves."""
    reserved = (name.partition(":") for name in task.resources)
    own = (int(number) for kind, _, number in reserved if kind == "port")
    return tuple(sorted({*(plan.job.ports if plan.job else ()), *own}))


def begin(
    world: World,
    task: Task,
    *,
    host_name: str,
    epoch: str | None,
    plan: StepPlan,
    generation: int | None = None,
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
            task.id, host=host_name, epoch=epoch, detail=detail, supersede=True,
            generation=generation,
        )  # fmt: skip
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
        task=elsewhere.host_name_of(attempt.task),
        generation=attempt.generation,
        argv=tuple(job["argv"]),
        env=job["env"],
        cwd=job["cwd"],
        time_limit_s=job["time_limit_s"],
        ports=tuple(job["ports"]),
        resources=tuple(job.get("gpus", ())),
        grace_s=job["grace_s"],
    )


def launch(
    world: World, task: Task, attempt: Attempt, host: Host, *, issued: Issued | None = None
) -> None:
    """Asks the host to run the attempt, beside the loop. Safe to repeat: it starts at most once."""
    spec = replace(spec_of(attempt), by=world.store.actor)

    def look(own: World) -> None:
        try:
            host.launch(with_secrets(own, attempt, spec, issued))
        except HostFenceHeld as error:
            owner = elsewhere.foreign_owner(own.store.snapshot(), task, host)
            if owner is not None and owner.attempt == error.attempt:
                error.hint = elsewhere.CURE.format(task=task.id)
                error.args = (elsewhere.told(task.id, owner),)
            raise

    def failed(error: Exception) -> None:
        if isinstance(error, CannotStart):
            world.refuse(task, f"{task.id}: not launched: {error}", error.hint)
        elif isinstance(error, Unreachable):
            world.unreachable(attempt.host, error)
        elif isinstance(error, RemoteError):
            not_started(world, task, attempt, error)
        else:
            raise error

    world.background.begin(
        world, attempt.id, attempt.host, look,
        done=lambda _: None, failed=failed, keep=True, brief=True,
    )  # fmt: skip


def not_started(world: World, task: Task, attempt: Attempt, error: RemoteError) -> None:
    """The host refused: this attempt never runs."""
    held = isinstance(error, HostFenceHeld)
    world.move(
        world.store.snapshot().task(task.id),
        TaskState.ATTENTION if held else TaskState.FAILED,
        reason=f"held on the host: {error} {error.hint}" if held else f"not started: {error}",
        attempt=attempt,
        attempt_to=AttemptState.NEVER_STARTED,
        cls=FailureClass.NEVER_STARTED,
        evidence={"error": str(error), "hint": error.hint},
    )
