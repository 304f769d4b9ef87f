"""How a step says which S3-compatible store it means. Credentials are never among it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from runbook.steps.base import StepArgs
from runbook.steps.dflash_job import DflashArgs, flag

if TYPE_CHECKING:
    from runbook.steps.base import StepContext

ObjectUrl = Annotated[
    str,
    Field(
        pattern=r"^(s3://[^/]|file:///|file://\$\{|\$\{)",
        description="s3://BUCKET/FOLDER, or file:///FOLDER on the host.",
    ),
]


class StoreArgs(StepArgs):
    """What an S3-compatible store needs to be found."""

    endpoint: Annotated[str, Field(description="Address of a store that is not AWS.")] = ""
    region: Annotated[str, Field(description="Region of the bucket.")] = ""
    addressing: Annotated[
        Literal["auto", "path", "virtual"], Field(description="How the bucket is addressed.")
    ] = "auto"


class TransferArgs(StoreArgs):
    """How hard a store is worked, and with whose keys."""

    connections: Annotated[int, Field(ge=1, le=256, description="Requests at the same time.")] = 32
    long_lived_keys: Annotated[
        bool,
        Field(
            description="Whether keys without a session token may be used on a machine that is "
            "reached over SSH: whoever runs that machine can read them."
        ),
    ] = False


class SyncArgs(DflashArgs, TransferArgs):
    """What `upload` and `download` share."""

    url: ObjectUrl


def store_words(args: TransferArgs, ctx: StepContext) -> tuple[str, ...]:
    """The options of `dflash put` and `dflash get`, and of `dflash generate --upload`."""
    ours = ctx.host_kind == "local" or args.long_lived_keys
    return (
        *flag("--endpoint", args.endpoint),
        *flag("--region", args.region),
        *(flag("--addressing", args.addressing) if args.addressing != "auto" else ()),
        *flag("--connections", args.connections),
        *(() if ours else ("--short-lived-only",)),
    )
