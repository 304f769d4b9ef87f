"""`model_copy`: a model into shared memory, where servers load it fast; else onto disk."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from runbook.steps.base import JobPlan, Step, StepContext, StepPlan
from runbook.steps.dflash_job import flag, told
from runbook.steps.object_args import StoreArgs, signed_listing
from runbook.steps.paths import HostPath  # noqa: TC001 (pydantic reads it)
from runbook.steps.slow import warned
from runbook.units import Shape, Size

# Which of the two it became is known to the payload alone. It is kept beside the copy on disk, so
# that a check can tell later that the copy in memory is gone: a restart takes it.
_COPY = 'python3 "$0" "$@" && cp -- "$RUNBOOK_OUT" "$PLACE.part" && mv -- "$PLACE.part" "$PLACE"'
_STILL_THERE = """\
import json, os, sys
folder = json.load(open(sys.argv[1]))["path"]
for entry in json.load(open(os.path.join(folder, "manifest.json")))["files"]:
    if os.path.getsize(os.path.join(folder, entry["path"])) != entry["size"]:
        sys.exit("%s in %s has another size" % (entry["path"], folder))
print(folder)
"""


class ModelCopyArgs(StoreArgs):
    """From where to where."""

    source: Annotated[
        str,
        Shape(
            r"^(/|\$\{|s3://[^/]|hub:[\w.-]+(/[\w.-]+)?(@[\w./-]+)?$)",
            "an absolute path, hub:ID[@REVISION] or s3://BUCKET/PREFIX",
        ),
        Field(
            min_length=1,
            description="The model's folder, a network mount too; `hub:ID[@REVISION]` (HF_TOKEN, "
            "HF_ENDPOINT); or `s3://BUCKET/PREFIX`, for which this machine signs URLs: the host "
            "gets no key.",
        ),
    ]
    shm: Annotated[HostPath, Field(description="The copy in shared memory, such as /dev/shm/NAME.")]
    disk: Annotated[
        HostPath,
        Field(
            description="Where it goes when memory is short; naming the source uses it in place."
        ),
    ]
    use_shm: Annotated[bool, Field(description="false goes to the disk at once.")] = True
    headroom: Annotated[
        Size, Field(description="Memory to leave free, of the machine and of its cgroup.")
    ] = 4 << 30
    streams: Annotated[int, Field(ge=1, description="Ranges read at the same time.")] = 16
    files: Annotated[int, Field(ge=1, description="Files copied at the same time.")] = 4
    replace: Annotated[
        bool,
        Field(
            description="Overwrite a whole copy of another model in either place; without, it is "
            "refused."
        ),
    ] = False
    reclaim: Annotated[
        bool,
        Field(
            description="Instead of copying: give the memory back, unless a process still uses the "
            "copy. For a task of its own, after the servers' `stop`."
        ),
    ] = False


class ModelCopy(Step[ModelCopyArgs]):
    """Copy a model into shared memory; its place is `${task.NAME.out.path}`."""

    name = "model_copy"
    Args = ModelCopyArgs

    def plan(self, args: ModelCopyArgs, ctx: StepContext) -> StepPlan:
        if args.reclaim:
            return self._reclaim(args, ctx)
        place = f"{args.disk}.place.json"
        shipped = ctx.ship("payloads")
        job = JobPlan(
            argv=(
                "/bin/sh",
                "-c",
                _COPY,
                f"{shipped}/remote/payloads/model_copy.py",
                *flag("--source", args.source),
                *flag("--shm", args.shm),
                *flag("--disk", args.disk),
                *(() if args.use_shm else ("--no-shm",)),
                *flag("--headroom", args.headroom),
                *flag("--streams", args.streams),
                *flag("--files", args.files),
                *(("--replace",) if args.replace else ()),
            ),
            cwd=ctx.work,
            env={"PLACE": place, "PYTHONPATH": shipped, "PYTHONDONTWRITEBYTECODE": "1"},
            grants=(signed_listing(args, args.source),) if args.source.startswith("s3://") else (),
        )
        return StepPlan(
            summary=(
                f"copy {args.source} to {args.shm}, or to {args.disk} when memory is short",
                *told(job, ctx),
                *warned(ctx, args.source, args.disk),
            ),
            job=job,
            done_when=(
                {"command": {"argv": ["python3", "-c", _STILL_THERE, place], "timeout_s": 60}},
            ),
        )

    def _reclaim(self, args: ModelCopyArgs, ctx: StepContext) -> StepPlan:
        shipped = ctx.ship("payloads")
        words = (*flag("--shm", args.shm), *flag("--disk", args.disk), "--reclaim")
        job = JobPlan(
            argv=("python3", f"{shipped}/remote/payloads/model_copy.py", *words),
            cwd=ctx.work,
            env={"PYTHONPATH": shipped, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        gone = {"command": {"argv": ["test", "!", "-e", f"{args.shm}/manifest.json"]}}
        return StepPlan(
            summary=(f"remove the copy in {args.shm} unless it is used", *told(job, ctx)),
            job=job,
            done_when=(gone,),
        )
