"""`upload`: a folder of the host into an S3 prefix, or a `file://` folder, as a detached job."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import dflash_job, flag, told
from runbook.steps.object_args import SyncArgs, scoped_keys, store_words
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)


class UploadArgs(SyncArgs):
    """From a folder to an address."""

    source: Annotated[HostPath, Field(min_length=1, description="The folder; hidden files stay.")]


class Upload(Step[UploadArgs]):
    """Upload a folder. What is equal there already is not sent again; nothing is deleted."""

    name = "upload"
    leaves_on_host = False
    Args = UploadArgs

    def plan(self, args: UploadArgs, ctx: StepContext) -> StepPlan:
        source, url = args.source.rstrip("/"), args.url.rstrip("/")
        receipt = receipt_beside(source, url)
        words = ("put", source, url, *store_words(args, ctx), *flag("--receipt", receipt))
        grants = scoped_keys(args, ctx, write=url)
        job = replace(dflash_job(args, ctx, words), grants=grants)
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(receipt, "url", equals=url),),
            out={"url": url},
        )


def receipt_beside(source: str, url: str) -> str:
    """Beside the folder and not in it: one for each address that it goes to."""
    return f"{source}.uploaded-{hashlib.sha256(url.encode()).hexdigest()[:8]}.json"
