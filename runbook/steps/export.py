"""`export`: a checkpoint into the folder that inference engines load."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)


class ExportArgs(DflashArgs):
    """Checkpoint in, drafter folder out."""

    checkpoint: Annotated[
        HostPath, Field(description="A checkpoint of `train`, or its folder of them.")
    ]
    out: Annotated[HostPath, Field(description="The drafter's folder.")]
    dtype: Annotated[
        Literal["bfloat16", "float32"] | None, Field(description="Type of the weights.")
    ] = None


class Export(Step[ExportArgs]):
    """Export a drafter."""

    name = "export"
    Args = ExportArgs

    def plan(self, args: ExportArgs, ctx: StepContext) -> StepPlan:
        words = (
            "export",
            *flag("--checkpoint", args.checkpoint),
            *flag("--out", args.out),
            *flag("--dtype", args.dtype),
        )
        job = dflash_job(args, ctx, words)
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.manifest(f"{args.out}/manifest.json"),),
            out={"path": args.out},
        )
