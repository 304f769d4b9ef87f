"""`s3_sync`: a folder that another task still fills, into an S3 prefix as its files close."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import dflash_job, flag, told
from runbook.steps.object_args import SyncArgs, scoped_keys, store_words
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)
from runbook.steps.upload import receipt_beside
from runbook.units import Seconds, Shape


class S3SyncArgs(SyncArgs):
    """From a growing folder to an address."""

    source: Annotated[
        HostPath,
        Field(min_length=1, description="The folder; with `until` it may come later."),
    ]
    until: Annotated[
        str,
        Shape(r"^([^/:][^:]*(:[^:]+)?)?$|\$\{", "FILE[:KEY] of the folder, such as manifest.json"),
        Field(
            description="FILE[:KEY] of the folder that ends it, such as `manifest.json:complete`; "
            "empty sends what is closed now and ends."
        ),
    ] = "manifest.json:complete"
    every: Annotated[Seconds, Field(gt=0, description="Between looks at the folder.")] = 5.0
    settle: Annotated[
        Seconds, Field(ge=0, description="A file that stands still so long is closed.")
    ] = 10.0


class S3Sync(Step[S3SyncArgs]):
    """Keep an S3 prefix up with a folder that grows; beside the task that fills it, not after."""

    name = "s3_sync"
    leaves_on_host = False
    Args = S3SyncArgs

    def plan(self, args: S3SyncArgs, ctx: StepContext) -> StepPlan:
        source, url = args.source.rstrip("/"), args.url.rstrip("/")
        receipt = receipt_beside(source, url)
        words = (
            "sync", source, url, *store_words(args, ctx), *flag("--until", args.until),
            *flag("--every", args.every), *flag("--settle", args.settle),
            *flag("--receipt", receipt),
        )  # fmt: skip
        job = replace(dflash_job(args, ctx, words), grants=scoped_keys(args, ctx, write=url))
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(receipt, "url", equals=url),),
            out={"url": url},
        )
