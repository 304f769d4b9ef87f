"""`shell`: run a command on the host. For what no other step type knows how to do."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from runbook.steps.base import JobPlan, Step, StepArgs, StepContext, StepPlan, shown
from runbook.units import Seconds  # noqa: TC001 (pydantic reads it)


class ShellArgs(StepArgs):
    """Either `argv` or `sh`."""

    argv: Annotated[
        tuple[str, ...], Field(description="The command as a list; no shell reads it.")
    ] = ()
    sh: Annotated[str, Field(description="A script for /bin/sh -eu, where a list will not do.")] = (
        ""
    )
    cwd: Annotated[str, Field(description="Working directory; the work folder if absent.")] = ""
    env: Annotated[
        dict[str, str],
        Field(default_factory=dict, description="Environment on top of the host's; no secrets."),
    ]
    grace: Annotated[Seconds, Field(description="From TERM to KILL when it is stopped.")] = 20.0

    @model_validator(mode="after")
    def one_command(self) -> ShellArgs:
        """Both or none would leave open what runs."""
        if bool(self.argv) == bool(self.sh):
            raise ValueError("give exactly one of argv and sh")
        return self


class Shell(Step[ShellArgs]):
    """Run a command on the host."""

    name = "shell"
    Args = ShellArgs

    def plan(self, args: ShellArgs, ctx: StepContext) -> StepPlan:
        argv = args.argv or ("/bin/sh", "-euc", args.sh)
        cwd = args.cwd or ctx.work
        return StepPlan(
            summary=(f"on {ctx.host_name}, in {cwd}:", shown(argv)),
            job=JobPlan(argv=argv, cwd=cwd, env=args.env, grace_s=args.grace),
        )
