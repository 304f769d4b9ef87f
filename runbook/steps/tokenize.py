"""`tokenize`: completions into Arrow shards with loss masks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told


class TokenizeArgs(DflashArgs):
    """Completions in, a tokenized set out."""

    completions: Annotated[str, Field(description="Folder of completions.")]
    tokenizer: Annotated[str, Field(description="Folder with the target's tokenizer.")]
    out: Annotated[str, Field(description="Folder of the tokenized set.")]
    max_length: Annotated[int | None, Field(ge=1, description="Longest row, in tokens.")] = None
    overlong: Annotated[
        Literal["drop", "truncate", "keep"] | None,
        Field(description="What becomes of longer ones."),
    ] = None
    split: Annotated[
        dict[str, float], Field(min_length=1, description="Share of the rows by split.")
    ]
    min_heldout: Annotated[
        int | None, Field(ge=0, description="Rows of heldout, if a quarter of all allows it.")
    ] = None
    workers: Annotated[int | None, Field(ge=1, description="Processes.")] = None


class Tokenize(Step[TokenizeArgs]):
    """Tokenize completions."""

    name = "tokenize"
    Args = TokenizeArgs

    def plan(self, args: TokenizeArgs, ctx: StepContext) -> StepPlan:
        split = ",".join(f"{name}={share:.12g}" for name, share in args.split.items())
        job = dflash_job(
            args,
            ctx,
            (
                "tokenize",
                *flag("--completions", args.completions),
                *flag("--tokenizer", args.tokenizer),
                *flag("--out", args.out),
                *flag("--max-length", args.max_length),
                *flag("--overlong", args.overlong),
                *flag("--split", split),
                *flag("--min-heldout", args.min_heldout),
                *flag("--workers", args.workers),
            ),
        )
        manifest = f"{args.out}/manifest.json"
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=tuple(
                checks.json_metric(manifest, f"splits.{name}.rows", min=1) for name in args.split
            ),
            out={"path": args.out},
        )
