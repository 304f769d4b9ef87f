"""`check`: whether an exported drafter computes what was trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told


class CheckDrafterArgs(DflashArgs):
    """The exported drafter and its target."""

    drafter: Annotated[str, Field(description="The exported drafter's folder.")]
    target: Annotated[str, Field(description="The target's folder.")]
    out: Annotated[str, Field(description="The report, a JSON file.")]


class CheckDrafter(Step[CheckDrafterArgs]):
    """Check an exported drafter."""

    name = "check"
    Args = CheckDrafterArgs

    def plan(self, args: CheckDrafterArgs, ctx: StepContext) -> StepPlan:
        job = dflash_job(
            args,
            ctx,
            (
                "check",
                *flag("--drafter", args.drafter),
                *flag("--target", args.target),
                *flag("--out", args.out),
            ),
        )
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(args.out, "ok", equals=True),),
            out={"report": args.out},
        )
