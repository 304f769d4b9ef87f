"""`audit`: look hard at completions or a tokenized set; a gate that fails stops the graph."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, flags, told
from runbook.steps.gate_args import Gates, gate_words
from runbook.steps.paths import HostPath, MaybePath  # noqa: TC001 (pydantic reads it)


class AuditArgs(DflashArgs):
    """Either completions or a tokenized set."""

    completions: Annotated[MaybePath, Field(description="Folder of completions.")] = ""
    tokenized: Annotated[MaybePath, Field(description="Tokenized set.")] = ""
    tokenizer: Annotated[MaybePath, Field(description="Folder with the target's tokenizer.")] = ""
    gates: Gates
    mask_token_id: Annotated[
        int | None, Field(ge=0, description="The drafter's, which no data may contain.")
    ] = None
    report: Annotated[
        HostPath, Field(description="Folder for report.json, report.txt, samples.json.")
    ]

    @model_validator(mode="after")
    def one_input(self) -> AuditArgs:
        """They have different gates."""
        if bool(self.completions) == bool(self.tokenized):
            raise ValueError("give exactly one of completions and tokenized")
        return self


class Audit(Step[AuditArgs]):
    """Audit data against gates."""

    name = "audit"
    Args = AuditArgs

    def plan(self, args: AuditArgs, ctx: StepContext) -> StepPlan:
        job = dflash_job(
            args,
            ctx,
            (
                "audit",
                *flag("--completions", args.completions),
                *flag("--tokenized", args.tokenized),
                *flag("--tokenizer", args.tokenizer),
                *flag("--mask-token-id", args.mask_token_id),
                *flags("--gate", gate_words(args.gates)),
                *flag("--report", args.report),
            ),
        )
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(f"{args.report}/report.json", "passed", equals=True),),
            out={"report": f"{args.report}/report.txt"},
        )
