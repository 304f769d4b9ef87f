"""`tokenize`: completions into Arrow shards with loss masks, on one host or on several."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told
from runbook.steps.object_args import KeyArgs, at_store, scoped_keys, store_words
from runbook.steps.paths import ABSOLUTE, HostPath, MaybePath
from runbook.units import Shape

SHARE_FORMAT = "dflash-tokenized-share/1"


class TokenizeArgs(DflashArgs, KeyArgs):
    """Completions in, a tokenized set out; or shares of one, made elsewhere, in."""

    completions: Annotated[
        str,
        Shape(r"^(/|s3://[^/]|\$\{|$)", f"{ABSOLUTE}, or s3://BUCKET/FOLDER"),
        Field(description="Folder of completions or of JSON lines, or s3://."),
    ] = ""
    merge: Annotated[
        tuple[HostPath, ...], Field(description="Or the folders of all shares, on this host.")
    ] = ()
    tokenizer: Annotated[MaybePath, Field(description="Folder with the target's tokenizer.")] = ""
    out: Annotated[HostPath, Field(description="Folder of the tokenized set.")]
    max_length: Annotated[int | None, Field(ge=1, description="Longest row, in tokens.")] = None
    overlong: Annotated[
        Literal["drop", "truncate", "keep"] | None,
        Field(description="What becomes of longer ones."),
    ] = None
    bad_rows: Annotated[
        Literal["refuse", "skip"] | None, Field(description="What becomes of unusable ones.")
    ] = None
    split: Annotated[
        dict[str, float], Field(min_length=1, description="Share of the rows by split.")
    ]
    min_heldout: Annotated[
        int | None, Field(ge=0, description="Rows of heldout, if a quarter of all allows it.")
    ] = None
    shard: Annotated[
        str,
        Shape(r"^[1-9][0-9]*/[1-9][0-9]*$", "I/N, such as 1/4"),
        Field(description="I/N: only these files."),
    ] = "1/1"
    workers: Annotated[int | None, Field(ge=1, description="Processes.")] = None

    @model_validator(mode="after")
    def one_input(self) -> TokenizeArgs:
        """A merge takes everything else from the shares."""
        if bool(self.completions) == bool(self.merge):
            raise ValueError("give exactly one of completions and merge")
        if self.completions and not self.tokenizer:
            raise ValueError("tokenizer is missing")
        return self


class Tokenize(Step[TokenizeArgs]):
    """Tokenize completions."""

    name = "tokenize"
    Args = TokenizeArgs

    def plan(self, args: TokenizeArgs, ctx: StepContext) -> StepPlan:
        words = ("--merge", *args.merge) if args.merge else _words(args)
        store = store_words(args, ctx) if at_store(args.completions) else ()
        job = dflash_job(args, ctx, ("tokenize", *words, *flag("--out", args.out), *store))
        job = replace(job, grants=scoped_keys(args, ctx, read=args.completions))
        manifest = f"{args.out}/manifest.json"
        whole = tuple(
            checks.json_metric(manifest, f"splits.{name}.rows", min=1) for name in args.split
        )
        part = (checks.json_metric(manifest, "format", equals=SHARE_FORMAT),)
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=whole if args.shard == "1/1" else part,
            out={"path": args.out},
        )


def _words(args: TokenizeArgs) -> tuple[str, ...]:
    split = ",".join(f"{name}={share:.12g}" for name, share in args.split.items())
    return (
        *flag("--completions", args.completions),
        *flag("--tokenizer", args.tokenizer),
        *flag("--max-length", args.max_length),
        *flag("--overlong", args.overlong),
        *flag("--bad-rows", args.bad_rows),
        *flag("--split", split),
        *flag("--min-heldout", args.min_heldout),
        *(() if args.shard == "1/1" else flag("--shard", args.shard)),
        *flag("--workers", args.workers),
    )
