"""`check`: whether an exported drafter computes what was trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)


class CheckDrafterArgs(DflashArgs):
    """The exported drafter and its target."""

    drafter: Annotated[HostPath, Field(description="The exported drafter's folder.")]
    target: Annotated[HostPath, Field(description="The target's folder.")]
    out: Annotated[HostPath, Field(description="The report, a JSON file.")]
    official_python: Annotated[
        str, Field(description="Interpreter with the official dflash package, to compare with.")
    ] = ""
    device: Annotated[str, Field(description="cpu, cuda, cuda:1.")] = ""


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
                *flag("--official-python", args.official_python),
                *flag("--device", args.device),
            ),
        )
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(args.out, "verdict", equals="pass"),),
            out={"report": args.out},
        )
