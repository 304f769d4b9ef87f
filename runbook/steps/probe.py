"""`probe`: record the facts of a host as evidence, and hold them against what the work needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from runbook.steps.base import Json, Outcome, Step, StepArgs, StepContext, StepPlan, host_of
from runbook.units import Shape, Size, show_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping


SIZES = ("min_memory", "min_free")


class ProbeArgs(StepArgs):
    """What the host must offer; nothing asked means that facts are only recorded."""

    min_memory: Annotated[
        Size | None, Field(description="Memory that processes may use, the cgroup limit counted.")
    ] = None
    min_free: Annotated[
        Size | None, Field(description="Free disk space in the host's work folder.")
    ] = None
    min_cpus: Annotated[int | None, Field(description="Usable CPU cores.", ge=1)] = None
    min_gpus: Annotated[int | None, Field(description="GPUs that the driver shows.", ge=0)] = None
    min_glibc: Annotated[
        Annotated[str, Shape(r"^\d+\.\d+$", "a version, such as 2.34")] | None,
        Field(description="GNU libc; SGLang's wheels want 2.34."),
    ] = None


class Probe(Step[ProbeArgs]):
    """Record facts of a host."""

    name = "probe"
    Args = ProbeArgs

    def plan(self, args: ProbeArgs, ctx: StepContext) -> StepPlan:
        asked = {key: value for key, value in args.model_dump().items() if value is not None}
        needs = (
            f"require {key} = {show_bytes(value) if key in SIZES else value}"
            for key, value in asked.items()
        )

        def run(live: StepContext) -> Outcome:
            host = host_of(live)
            facts = dict(host.facts())
            problems = _missing(args, facts)
            if args.min_free is not None:
                space = {"free_space": {"path": live.work, "bytes": args.min_free}}
                (answer,) = host.check([space])
                facts["work_space"] = dict(answer.evidence)
                if answer.verdict != "pass":
                    problems.append(
                        f"{live.work} lacks {show_bytes(args.min_free)} of free space; free some, "
                        f"or bind the role to a host with a larger disk"
                    )
            return Outcome(
                ok=not problems,
                out={key: facts[key] for key in ("hostname", "distribution") if key in facts},
                evidence=facts,
                message="; ".join(problems) or "facts recorded",
            )

        return StepPlan(summary=(f"read the facts of {ctx.host_name}", *needs), run=run)


def _missing(args: ProbeArgs, facts: Mapping[str, Json]) -> list[str]:
    problems: list[str] = []
    memory = usable_memory(facts)
    if args.min_memory is not None and (memory is None or memory < args.min_memory):
        found = "an unknown amount" if memory is None else show_bytes(memory)
        problems.append(
            f"processes may use {found} of memory, {show_bytes(args.min_memory)} are needed: "
            f"raise the limit or take a larger host"
        )
    counts = {"cpus": facts.get("cpu", {}).get("usable"), "gpus": len(facts.get("gpus") or ())}
    for wanted, what in ((args.min_cpus, "cpus"), (args.min_gpus, "gpus")):
        if wanted is not None and (counts[what] or 0) < wanted:
            problems.append(f"{counts[what] or 'no'} {what} found, {wanted} needed")
    if args.min_glibc is not None:
        found = str(facts.get("glibc") or "")
        if _version(found) < _version(args.min_glibc):
            problems.append(f"glibc {found or 'not found'}, {args.min_glibc} or newer is needed")
    return problems


def usable_memory(facts: Mapping[str, Json]) -> int | None:
    """The smaller of the machine's memory and the cgroup's limit; None when neither is known."""
    memory = facts.get("memory", {})
    known = [memory.get("total_bytes"), memory.get("cgroup_limit_bytes")]
    return min((value for value in known if isinstance(value, int)), default=None)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
