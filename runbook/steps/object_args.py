"""How a step says which S3-compatible store it means. Credentials are never among it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from runbook.steps.base import StepArgs
from runbook.steps.dflash_job import DflashArgs, flag
from runbook.steps.paths import MaybeHttpUrl  # noqa: TC001 (pydantic reads it)
from runbook.units import Shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runbook.steps.base import Json, StepContext

    Grant = Mapping[str, Json]

ObjectUrl = Annotated[
    str,
    Shape(r"^(s3://[^/]|file:///|file://\$\{|\$\{)", "s3://BUCKET/FOLDER or file:///FOLDER"),
    Field(
        description="s3://BUCKET/FOLDER, or file:///FOLDER on the host.",
    ),
]


class StoreArgs(StepArgs):
    """What an S3-compatible store needs to be found."""

    endpoint: Annotated[MaybeHttpUrl, Field(description="Address of a store that is not AWS.")] = ""
    region: Annotated[str, Field(description="Region of the bucket.")] = ""
    addressing: Annotated[
        Literal["auto", "path", "virtual"], Field(description="How the bucket is addressed.")
    ] = "auto"


class KeyArgs(StoreArgs):
    """With whose keys a store is opened."""

    long_lived_keys: Annotated[
        bool,
        Field(
            description="Whether keys without a session token may be used on a machine that is "
            "reached over SSH: whoever runs that machine can read them. Without it, and without "
            "keys among the task's secrets, the job gets short-lived ones for this prefix alone, "
            "and new ones in time."
        ),
    ] = False
    key_hours: Annotated[
        int, Field(ge=1, le=36, description="How long the short-lived keys are asked to hold.")
    ] = 24
    key_role: Annotated[
        str, Field(description="Role (ARN) that they are of, where the store asks for one.")
    ] = ""


class TransferArgs(KeyArgs):
    """And how hard it is worked."""

    connections: Annotated[int, Field(ge=1, le=256, description="Requests at the same time.")] = 32


def signed_listing(args: StoreArgs, url: str) -> Grant:
    """What lies below a prefix, with signed URLs: the host needs no keys at all."""
    return {
        "kind": "listing", "url": url.rstrip("/"), "endpoint": args.endpoint,
        "region": args.region, "addressing": args.addressing,
    }  # fmt: skip


class SyncArgs(DflashArgs, TransferArgs):
    """What `upload` and `download` share."""

    url: ObjectUrl


def at_store(where: str) -> bool:
    """Whether keys are needed for it."""
    return where.startswith("s3://")


def store_words(args: KeyArgs, ctx: StepContext) -> tuple[str, ...]:
    """The options of every `dflash` command that goes to a store."""
    ours = ctx.host_kind == "local" or args.long_lived_keys
    return (
        *flag("--endpoint", args.endpoint),
        *flag("--region", args.region),
        *(flag("--addressing", args.addressing) if args.addressing != "auto" else ()),
        *(flag("--connections", args.connections) if isinstance(args, TransferArgs) else ()),
        *(() if ours else ("--short-lived-only",)),
    )


def scoped_keys(args: KeyArgs, ctx: StepContext, **urls: str) -> tuple[Grant, ...]:
    """Keys for a job on a machine that is not ours, not for long and for these alone: `read` and
    `write` are addresses, those that are none of S3 need no key."""
    places = [
        {"url": url.rstrip("/"), "write": name == "write"}
        for name, url in urls.items()
        if at_store(url)
    ]
    if ctx.host_kind == "local" or args.long_lived_keys or not places:
        return ()
    return (
        {
            "kind": "keys", "places": places, "hours": args.key_hours, "role": args.key_role,
            "endpoint": args.endpoint, "region": args.region,
        },
    )  # fmt: skip
