"""`plan`: what a training will take, by arithmetic, before anything is paid for.

For storage it is a gate as well: hidden states that would be kept on disk must fit into the room
that there is. `states: online` keeps none.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told
from runbook.steps.paths import HostPath, MaybePath  # noqa: TC001 (pydantic reads it)
from runbook.units import Size  # noqa: TC001 (pydantic reads it)


class PlanArgs(DflashArgs):
    """The options of `dflash plan` that a runbook sets; the rest by `extra`."""

    kind: Annotated[
        Literal["storage", "memory", "topology", "time"],
        Field(description="Bytes of stored states; memory per GPU; split of GPUs; hours."),
    ]
    target: Annotated[HostPath, Field(description="The target's folder, or its config.json.")]
    data: Annotated[
        MaybePath, Field(description="Tokenized set: its manifest has the numbers.")
    ] = ""
    documents: Annotated[int | None, Field(ge=1, description="Instead of `data`.")] = None
    mean_tokens: Annotated[float | None, Field(gt=0, description="Of a document.")] = None
    taps: Annotated[tuple[int, ...], Field(description="Target layers whose output is used.")] = ()
    anchors_per_doc: Annotated[int | None, Field(ge=1, description="Blocks per document.")] = None
    gpu: Annotated[str, Field(description="Such as h200; `dflash plan --help`.")] = ""
    gpus: Annotated[int | None, Field(ge=1, description="How many.")] = None
    states: Annotated[
        Literal["online", "whole", "anchors", "truncated", "subset", "chunked"],
        Field(description="For storage: which way of keeping the states is meant."),
    ] = "online"
    room: Annotated[Size | None, Field(description="For storage: more than this is refused.")] = (
        None
    )
    extra: Annotated[tuple[str, ...], Field(description="Further flags, as they are.")] = ()
    out: Annotated[HostPath, Field(description="The report, a JSON file.")]

    @model_validator(mode="after")
    def says_what_is_refused(self) -> PlanArgs:
        """Only bytes are held against a limit."""
        if self.kind != "storage" and (self.room is not None or self.states != "online"):
            raise ValueError("`room` and `states` go with kind storage")
        return self


class Plan(Step[PlanArgs]):
    """Work out storage, memory, topology or time of a training, and hold it against a limit."""

    name = "plan"
    Args = PlanArgs

    def plan(self, args: PlanArgs, ctx: StepContext) -> StepPlan:
        words = (
            "plan",
            args.kind,
            *flag("--target", args.target),
            *flag("--data", args.data),
            *flag("--documents", args.documents),
            *flag("--mean-tokens", args.mean_tokens),
            *flag("--taps", ",".join(map(str, args.taps))),
            *flag("--anchors-per-doc", args.anchors_per_doc),
            *flag("--gpu", args.gpu),
            *flag("--gpus", args.gpus),
            *flag("--out", args.out),
            *args.extra,
        )
        job = dflash_job(args, ctx, words)
        chosen = f"numbers.bytes.{args.states}.bfloat16"
        limit = () if args.room is None else (checks.json_metric(args.out, chosen, max=args.room),)
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.json_metric(args.out, "plan", equals=args.kind), *limit),
            out={"report": args.out},
        )
