"""`venv`: one virtual environment from a lock file, built or adopted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from runbook.steps.base import JobPlan, Step, StepArgs, StepContext, StepPlan
from runbook.steps.dflash_job import flag, flags, shipped, told
from runbook.steps.paths import PLUGINS, HostPath, file_or
from runbook.steps.slow import warned
from runbook.units import Seconds, Shape, Size


class VenvArgs(StepArgs):
    """Where it goes, and what must be in it."""

    dest: Annotated[HostPath, Field(description="The environment's folder; absolute.")]
    lock: Annotated[
        str,
        *file_or("$", bundle="locks"),
        Field(description="Lock file of name==version lines on the host, or `bundled:cpu.lock`."),
    ] = ""
    packages: Annotated[
        tuple[str, ...],
        Field(description="Instead of a lock: requirements, installed with what they need."),
    ] = ()
    installer: Annotated[
        Literal["auto", "uv", "pip"],
        Field(description="auto: uv where it is to be had, told what pip's configuration says."),
    ] = "auto"
    python: Annotated[
        str, Field(description="Interpreter to build with; `auto` looks for one.")
    ] = "auto"
    min_python: Annotated[
        str, Shape(r"^\d+\.\d+$", "a version, such as 3.11"), Field(description="Oldest accepted.")
    ] = "3.11"
    torch_index: Annotated[
        str, Field(description="An extra package index, such as one of CPU builds of torch.")
    ] = ""
    plugins: Annotated[
        tuple[Annotated[str, *file_or(bundle=PLUGINS)], ...],
        Field(description="Source folders to install; `bundled:cpu_platform` is SGLang on a CPU."),
    ] = ()
    imports: Annotated[
        tuple[str, ...], Field(min_length=1, description="Modules that must import.")
    ]
    imports_under: Annotated[
        Seconds | None, Field(description="How long importing may take on this disk.")
    ] = None
    require_free: Annotated[
        Size | None, Field(description="Free space asked for before anything is downloaded.")
    ] = None
    prove_cuda: Annotated[
        bool | None,
        Field(
            description="torch must see a CUDA device, and the driver be new enough, which is "
            "known before any download. Unsaid: where the host has a GPU and the lock is for one."
        ),
    ] = None
    allow_network_mount: Annotated[
        bool,
        Field(description="Build on one all the same; without, it is refused before a download."),
    ] = False
    env: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Environment while it is built and proved."),
    ]

    @model_validator(mode="after")
    def one_of_both(self) -> VenvArgs:
        """A lock says all; a list leaves versions open."""
        if bool(self.lock) == bool(self.packages):
            raise ValueError("give either lock or packages")
        return self


class Venv(Step[VenvArgs]):
    """Build or adopt a virtual environment."""

    name = "venv"
    Args = VenvArgs

    def plan(self, args: VenvArgs, ctx: StepContext) -> StepPlan:
        plugins = (
            ctx.ship(name.removeprefix("bundled:")) if name.startswith("bundled:") else name
            for name in args.plugins
        )
        payloads = ctx.ship("payloads")
        cuda = {None: (), True: ("--prove-cuda",), False: ("--no-cuda",)}
        job = JobPlan(
            argv=(
                "python3",
                f"{payloads}/remote/payloads/venv.py",
                *flag("--dest", args.dest),
                *(flag("--lock", shipped(args.lock, ctx, bundle="locks")) if args.lock else ()),
                *flags("--package", args.packages),
                *(flag("--installer", args.installer) if args.installer != "auto" else ()),
                *flag("--python", args.python),
                *flag("--min-python", args.min_python),
                *flag("--index-torch", args.torch_index),
                *flags("--plugin", plugins),
                *flag("--imports", ",".join(args.imports)),
                *flag("--imports-under", args.imports_under),
                *flag("--require-free", args.require_free),
                *cuda[args.prove_cuda],
                *(("--allow-network-mount",) if args.allow_network_mount else ()),
                *flags("--env", (f"{key}={value}" for key, value in sorted(args.env.items()))),
            ),
            cwd=ctx.work,
            env={"PYTHONPATH": payloads, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        python = f"{args.dest}/bin/python"
        imports: dict[str, object] = {"python": python, "modules": list(args.imports)}
        if args.env:
            imports["env"] = args.env
        return StepPlan(
            summary=(*told(job, ctx), *warned(ctx, args.dest)),
            job=job,
            done_when=({"python_imports": imports},),
            out={"path": args.dest, "python": python},
        )
