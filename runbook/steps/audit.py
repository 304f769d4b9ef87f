"""`audit`: look hard at completions or a tokenized set; a gate that fails stops the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator, model_validator

from dflash.errors import UsageError
from dflash.gates import parse_gates
from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, flags, told

if TYPE_CHECKING:
    from collections.abc import Mapping


class AuditArgs(DflashArgs):
    """Either completions or a tokenized set."""

    completions: Annotated[str, Field(description="Folder of completions.")] = ""
    tokenized: Annotated[str, Field(description="Tokenized set.")] = ""
    tokenizer: Annotated[str, Field(description="Folder with the target's tokenizer.")] = ""
    gates: Annotated[
        dict[str, float | str],
        Field(default_factory=dict, description="Limit by gate; `dflash audit --help`."),
    ]
    mask_token_id: Annotated[
        int | None, Field(ge=0, description="The drafter's, which no data may contain.")
    ] = None
    report: Annotated[str, Field(description="Folder for report.json, report.txt, samples.json.")]

    @field_validator("gates")
    @classmethod
    def are_gates(cls, gates: dict[str, float | str]) -> dict[str, float | str]:
        """A wrong gate must not show after hours of generating."""
        try:
            parse_gates([word for word in _words(gates) if "${" not in word])
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.hint}") from error
        return gates

    @model_validator(mode="after")
    def one_input(self) -> AuditArgs:
        """They have different gates."""
        if bool(self.completions) == bool(self.tokenized):
            raise ValueError("give exactly one of completions and tokenized")
        return self


def _words(gates: Mapping[str, float | str]) -> list[str]:
    return [
        f"{name}={value}" if isinstance(value, str) else f"{name}={value:.12g}"
        for name, value in gates.items()
    ]


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
                *flags("--gate", _words(args.gates)),
                *flag("--report", args.report),
            ),
        )
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(f"{args.report}/report.json", "passed", equals=True),),
            out={"report": f"{args.report}/report.txt"},
        )
