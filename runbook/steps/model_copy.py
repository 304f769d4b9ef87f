"""`model_copy`: a model into shared memory, where servers load it fast; else onto disk."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runbook.steps.base import JobPlan, Step, StepArgs, StepContext, StepPlan
from runbook.steps.dflash_job import flag, told
from runbook.units import Size  # noqa: TC001 (pydantic reads it)

# Which of the two it became is known to the payload alone, and said in its results.
_EITHER = 'test -s "$0/manifest.json" || test -s "$1/manifest.json"'


class ModelCopyArgs(StepArgs):
    """From where to where."""

    source: Annotated[str, Field(description="The model's folder.")]
    shm: Annotated[str, Field(description="The copy in shared memory, such as /dev/shm/NAME.")]
    disk: Annotated[
        str,
        Field(
            description="Where it goes when memory is short; naming the source uses it in place."
        ),
    ]
    use_shm: Annotated[bool, Field(description="false goes to the disk at once.")] = True
    headroom: Annotated[
        Size, Field(description="Memory to leave free, of the machine and of its cgroup.")
    ] = 4 << 30
    streams: Annotated[int, Field(ge=1, description="Ranges read at the same time.")] = 8
    files: Annotated[int, Field(ge=1, description="Files copied at the same time.")] = 4


class ModelCopy(Step[ModelCopyArgs]):
    """Copy a model into shared memory; its place is `${task.NAME.out.path}`."""

    name = "model_copy"
    Args = ModelCopyArgs

    def plan(self, args: ModelCopyArgs, ctx: StepContext) -> StepPlan:
        job = JobPlan(
            argv=(
                "python3",
                f"{ctx.ship('payloads')}/model_copy.py",
                *flag("--source", args.source),
                *flag("--shm", args.shm),
                *flag("--disk", args.disk),
                *(() if args.use_shm else ("--no-shm",)),
                *flag("--headroom", args.headroom),
                *flag("--streams", args.streams),
                *flag("--files", args.files),
            ),
            cwd=ctx.work,
        )
        places = ["/bin/sh", "-c", _EITHER, args.shm, args.disk]
        return StepPlan(
            summary=(
                f"copy {args.source} to {args.shm}, or to {args.disk} when memory is short",
                *told(job, ctx),
            ),
            job=job,
            done_when=({"command": {"argv": places, "timeout_s": 30}},),
        )
