"""How every step that runs a `dflash` command runs it: one environment, the shipped package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from runbook.steps.base import JobPlan, StepArgs, StepContext, shown
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runbook.steps.base import Json


class DflashArgs(StepArgs):
    """What all of them take."""

    venv: Annotated[HostPath, Field(description="The environment's folder on the host.")]
    threads: Annotated[
        int,
        Field(
            ge=1,
            description="CPU threads of each process. With more than one, processes that share "
            "few cores stall each other.",
        ),
    ] = 1


def dflash_job(
    args: DflashArgs,
    ctx: StepContext,
    words: Iterable[str],
    *,
    ports: tuple[int, ...] = (),
    grace_s: float = 20,
) -> JobPlan:
    """`python -m dflash` of the shipped package; the host's own files never shadow it."""
    return JobPlan(
        argv=(f"{args.venv}/bin/python", "-m", "dflash", *words),
        cwd=ctx.work,
        ports=ports,
        grace_s=grace_s,
        env={
            "PYTHONPATH": ctx.ship("dflash"),
            "PYTHONSAFEPATH": "1",  # a `dflash` folder in the working directory is not ours
            "OMP_NUM_THREADS": str(args.threads),
            "TOKENIZERS_PARALLELISM": "false",
            # A wrong folder name must fail at once, not after minutes of retries on a hub.
            "HF_HUB_OFFLINE": "1",
        },
    )


def flag(name: str, value: object) -> tuple[str, ...]:
    """`--name value`, or nothing when there is no value."""
    if value is None or value == "":
        return ()
    if isinstance(value, float):
        return (name, repr(value))
    return (name, str(value))


def flags(name: str, values: Iterable[object]) -> tuple[str, ...]:
    """`--name value` for each."""
    return tuple(word for value in values for word in flag(name, value))


def told(job: JobPlan, ctx: StepContext) -> tuple[str, ...]:
    """The summary of a job: where, the command that runs there, and what is issued for it."""
    given = map(_granted, job.grants)
    return (f"on {ctx.host_name}, in {job.cwd}:", shown(job.argv), *given)


def _granted(grant: Mapping[str, Json]) -> str:
    if grant["kind"] == "listing":
        return f"with signed URLs of what is below {grant['url']}; no key goes there"
    places = ", ".join(one["url"] for one in grant["places"])
    return f"with keys of its own for {places} alone, for {grant['hours']} h"


def shipped(value: str, ctx: StepContext, *, bundle: str) -> str:
    """A path on the host; `bundled:NAME` is a file of ours, put there now."""
    if value.startswith("bundled:"):
        return f"{ctx.ship(bundle)}/{value.removeprefix('bundled:')}"
    return value
