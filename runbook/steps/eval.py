"""`eval`: how much a drafter is accepted, beside baselines, and whether the text stays the same."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, shipped, told
from runbook.steps.paths import HostPath, MaybePath, file_or


class EvalArgs(DflashArgs):
    """Drafter, target, and held-out data or prompts."""

    target: Annotated[HostPath, Field(description="The target's folder.")]
    drafter: Annotated[HostPath, Field(description="A checkpoint or an exported drafter.")]
    data: Annotated[MaybePath, Field(description="Tokenized set; its held-out split is used.")] = ""
    prompts: Annotated[
        str,
        *file_or("$", bundle="prompts"),
        Field(description="Or a file of prompts, or `bundled:NAME`."),
    ] = ""
    split: Annotated[str, Field(description="Split of `data`.")] = ""
    out: Annotated[HostPath, Field(description="The report, a JSON file.")]
    baselines: Annotated[tuple[str, ...], Field(description="What it is compared with.")] = (
        "untrained",
        "lookup",
    )
    max_new_tokens: Annotated[int | None, Field(ge=1, description="Per prompt.")] = None
    limit: Annotated[int | None, Field(ge=1, description="At most so many prompts.")] = None
    seed: Annotated[int | None, Field(description="Choice of prompts, bootstrap.")] = None
    workers: Annotated[int | None, Field(ge=1, description="Processes.")] = None
    device: Annotated[str, Field(description="cpu, cuda, cuda:1.")] = ""

    @model_validator(mode="after")
    def one_input(self) -> EvalArgs:
        """They are read differently."""
        if bool(self.data) == bool(self.prompts):
            raise ValueError("give exactly one of data and prompts")
        return self


class Eval(Step[EvalArgs]):
    """Measure a drafter."""

    name = "eval"
    Args = EvalArgs

    def plan(self, args: EvalArgs, ctx: StepContext) -> StepPlan:
        job = dflash_job(
            args,
            ctx,
            (
                "eval",
                *flag("--target", args.target),
                *flag("--drafter", args.drafter),
                *flag("--data", args.data),
                *flag("--prompts", shipped(args.prompts, ctx, bundle="prompts")),
                *flag("--split", args.split),
                *flag("--out", args.out),
                *flag("--baselines", ",".join(args.baselines)),
                *flag("--max-new-tokens", args.max_new_tokens),
                *flag("--limit", args.limit),
                *flag("--seed", args.seed),
                *flag("--workers", args.workers),
                *flag("--device", args.device),
            ),
        )
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(args.out, "lossless.ok", equals=True),),
            out={"report": args.out},
        )
