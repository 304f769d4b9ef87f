"""`train`: the drafter, online against the frozen target; resumes from its last checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, told
from runbook.steps.object_args import KeyArgs, scoped_keys, store_words
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)
from runbook.units import Seconds  # noqa: TC001 (pydantic reads it)

# Every argument is the flag of the same name; these are not flags, or not at all times.
_OURS = frozenset({"venv", "threads", "grace", "extra", "taps", *KeyArgs.model_fields})


class TrainArgs(DflashArgs, KeyArgs):
    """The options of `dflash train` that a runbook sets; the rest by `extra`."""

    target: Annotated[HostPath, Field(description="The target's folder.")]
    data: Annotated[HostPath, Field(description="Tokenized set.")]
    out: Annotated[HostPath, Field(description="Folder of checkpoints.")]
    recipe: Annotated[
        str | None, Field(description="Options to start from: paper, seed, wsd, or a file there.")
    ] = None
    steps: Annotated[int | None, Field(ge=1, description="Optimiser steps.")] = None
    tokens: Annotated[int | None, Field(ge=1, description="Or stop after so many tokens.")] = None
    minutes: Annotated[float | None, Field(gt=0, description="Or after so much time.")] = None
    layers: Annotated[int | None, Field(ge=1, description="Layers of the drafter.")] = None
    block_size: Annotated[int | None, Field(ge=2, description="Positions of a block.")] = None
    taps: Annotated[tuple[int, ...], Field(description="Target layers whose output is used.")] = ()
    num_taps: Annotated[int | None, Field(ge=1, description="Or so many, spread evenly.")] = None
    anchors_per_doc: Annotated[int | None, Field(ge=1, description="Blocks per document.")] = None
    max_length: Annotated[int | None, Field(ge=1, description="Longer documents are cut.")] = None
    batch_tokens: Annotated[
        int | None, Field(ge=1, description="Tokens per micro-batch, filled by packing.")
    ] = None
    batch_blocks: Annotated[
        int | None, Field(ge=1, description="Blocks per micro-batch: bounds the drafter's memory.")
    ] = None
    batch_docs: Annotated[
        int | None, Field(ge=1, description="Or so many documents per micro-batch.")
    ] = None
    micro_batches: Annotated[int | None, Field(ge=1, description="Micro-batches per step.")] = None
    head_sample: Annotated[
        int | None,
        Field(ge=0, description="Tokens that the loss sees; 0 is all. For CPUs."),
    ] = None
    schedule: Annotated[
        Literal["wsd", "cosine", "constant"] | None, Field(description="Of the learning rate.")
    ] = None
    loss: Annotated[Literal["ce", "dpace"] | None, Field(description="Over slots.")] = None
    lr: Annotated[float | None, Field(gt=0, description="Peak learning rate.")] = None
    init: Annotated[Literal["target", "random"] | None, Field(description="Initial weights.")] = (
        None
    )
    targets: Annotated[int | None, Field(ge=1, description="Ranks of the frozen target.")] = None
    drafters: Annotated[int | None, Field(ge=1, description="Ranks of the drafter.")] = None
    colocated: Annotated[bool, Field(description="Target and drafter share each device.")] = False
    calibrate: Annotated[
        bool, Field(description="Measure for some seconds and choose the split by that.")
    ] = False
    devices: Annotated[
        int | None, Field(ge=1, description="GPUs that a calibration divides; else all.")
    ] = None
    shard_optimizer: Annotated[
        bool, Field(description="Each drafter rank keeps its part of the optimiser only.")
    ] = False
    backend: Annotated[Literal["gloo", "nccl"] | None, Field(description="Transport.")] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"] | None, Field(description="Compute type.")
    ] = None
    seed: Annotated[int | None, Field(description="Seed of everything random.")] = None
    save_every: Annotated[int | None, Field(ge=1, description="Steps between checkpoints.")] = None
    eval_docs: Annotated[
        int | None, Field(ge=0, description="Held-out documents evaluated at each checkpoint.")
    ] = None
    upload: Annotated[
        str | None,
        Field(
            description="s3://BUCKET/PREFIX for checkpoints, in the background; a new machine "
            "goes on from the newest there."
        ),
    ] = None
    extra: Annotated[tuple[str, ...], Field(description="Further flags, as they are.")] = ()
    grace: Annotated[
        Seconds, Field(description="From TERM to KILL: time to finish a step and save.")
    ] = 120.0


class Train(Step[TrainArgs]):
    """Train a drafter; its last checkpoint is `${task.NAME.out.checkpoint}`."""

    name = "train"
    Args = TrainArgs

    def plan(self, args: TrainArgs, ctx: StepContext) -> StepPlan:
        words = ["train"]
        for name in (name for name in TrainArgs.model_fields if name not in _OURS):
            value, word = getattr(args, name), "--" + name.replace("_", "-")
            if isinstance(value, bool):
                words += [word] if value else []
            else:
                words += flag(word, value)
        if args.taps:
            words += ["--taps", ",".join(map(str, args.taps))]
        url = args.upload or ""
        words += store_words(args, ctx) if url else ()
        job = dflash_job(args, ctx, (*words, *args.extra), grace_s=args.grace)
        job = replace(job, grants=scoped_keys(args, ctx, write=url))
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(checks.file(f"{args.out}/latest"),),
            out={"path": args.out},
        )
