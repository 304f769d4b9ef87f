"""`download`: what `upload` brought to an address into a folder of the host, as a detached job."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import dflash_job, told
from runbook.steps.object_args import SyncArgs, scoped_keys, store_words
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)


class DownloadArgs(SyncArgs):
    """From an address to a folder."""

    out: Annotated[HostPath, Field(min_length=1, description="The folder; other files in it stay.")]
    plain: Annotated[
        bool,
        Field(description="All objects below the address, though no upload vouches for them."),
    ] = False


class Download(Step[DownloadArgs]):
    """Download a folder. What is equal there already is not fetched again."""

    name = "download"
    Args = DownloadArgs

    def plan(self, args: DownloadArgs, ctx: StepContext) -> StepPlan:
        out = args.out.rstrip("/")
        words = ("get", args.url.rstrip("/"), out, *store_words(args, ctx))
        job = dflash_job(args, ctx, (*words, *(("--plain",) if args.plain else ())))
        job = replace(job, grants=scoped_keys(args, ctx, read=args.url))
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.manifest(f"{out}/.objects.json"),),
            out={"path": out},
        )
