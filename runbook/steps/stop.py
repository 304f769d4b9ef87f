"""`stop`: stop named service tasks, and be done only when nothing of them is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from runbook.steps.base import Json, Outcome, Step, StepArgs, StepContext, StepPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class StopArgs(StepArgs):
    """Which services."""

    tasks: Annotated[
        tuple[str, ...], Field(min_length=1, description="The service tasks to stop, in order.")
    ]


class Stop(Step[StopArgs]):
    """Stop services and verify it."""

    name = "stop"
    Args = StopArgs
    needs_host = False

    def task_refs(self, args: StopArgs) -> Mapping[str, Sequence[str]]:
        return {"tasks": args.tasks}

    def plan(self, args: StopArgs, ctx: StepContext) -> StepPlan:
        def run(live: StepContext) -> Outcome:
            return _stop_all(args.tasks, live)

        return StepPlan(
            summary=tuple(
                f"stop {task}: TERM, grace, KILL, then verify process and port"
                for task in args.tasks
            ),
            run=run,
        )


def _stop_all(tasks: Sequence[str], ctx: StepContext) -> Outcome:
    """Each is tried, whatever became of the one before: a survivor must not hide another."""
    evidence: dict[str, Json] = {}
    left: list[str] = []
    for task in tasks:
        answer = ctx.stop_task(task)
        evidence[task] = {"state": answer.state, "survivors": [dict(s) for s in answer.survivors]}
        ctx.log(f"{task}: {answer.state}")
        if answer.state != "stopped":
            left.append(task)
    return Outcome(
        ok=not left,
        evidence=evidence,
        message=(
            f"not stopped: {', '.join(left)}; the survivors are in the evidence"
            if left
            else f"stopped {', '.join(tasks)}"
        ),
    )
