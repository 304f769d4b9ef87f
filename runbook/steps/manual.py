"""`manual`: what a person does, such as renting a machine. The graph waits for them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runbook.steps.base import Step, StepArgs, StepContext, StepPlan


class ManualArgs(StepArgs):
    """The instruction."""

    ask: Annotated[str, Field(min_length=1, description="What to do, and how to know it is done.")]


class Manual(Step[ManualArgs]):
    """Wait for a person."""

    name = "manual"
    kind = "manual"
    Args = ManualArgs
    needs_host = False

    def plan(self, args: ManualArgs, ctx: StepContext) -> StepPlan:
        del ctx
        return StepPlan(summary=("a person does this:", *args.ask.strip().splitlines()))
