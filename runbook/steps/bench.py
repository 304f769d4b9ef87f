"""`bench`: which flags serve our prompts fastest, measured on the host; the choice is kept.

One server after the other, on the same prompts: speculation on or off, caches, state pools, and how
many requests at a time. What does not start, fails requests or says something else than the first
variant is no choice. The winner becomes a decision, with its figures.
"""

from __future__ import annotations

import json
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, flags, shipped, told
from runbook.steps.paths import HostPath, file_or
from runbook.steps.serve_args import ServeArgs
from runbook.steps.server_argv import environment, server_argv
from runbook.units import Seconds  # noqa: TC001 (pydantic reads it)

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
TOKEN = "{token}"  # noqa: S105 (the word in whose place each start gets its own)


class BenchArgs(DflashArgs):
    """What is compared, on what."""

    serve: Annotated[
        ServeArgs, Field(description="A server, as `serve` takes it; what all variants share.")
    ]
    variants: Annotated[
        tuple[dict[str, Any], ...],
        Field(
            min_length=1,
            description="Each has a `name` and what is different there. The others' texts are "
            "compared with the first one's, so let that be the plain one.",
        ),
    ]
    concurrency: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(min_length=1, description="Requests at a time; each is measured."),
    ]
    prompts: Annotated[
        str,
        *file_or(bundle="prompts"),
        Field(description="JSON-lines file on the host, or `bundled:NAME.jsonl`."),
    ]
    out: Annotated[HostPath, Field(description="Folder of results and of the servers' logs.")]
    limit: Annotated[int, Field(ge=1, description="Prompts of each run.")] = 1000
    max_tokens: Annotated[int, Field(ge=1, description="Longest completion.")] = 2048
    temperature: Annotated[float, Field(ge=0, description="0 is greedy.")] = 1.0
    top_p: Annotated[float | None, Field(gt=0, le=1, description="Nucleus.")] = None
    top_k: Annotated[int | None, Field(ge=1, description="Only the best so many tokens.")] = None
    thinking: Annotated[
        Literal["on", "off", "default"], Field(description="What the chat template is told.")
    ] = "default"
    max_failed: Annotated[
        float, Field(ge=0, le=1, description="Share of requests; above it, no choice.")
    ] = 0.01
    min_agreement: Annotated[
        float,
        Field(ge=0, le=1, description="Share of greedy beginnings, before and after the load, "
        "that must be the first variant's."),
    ] = 0.7  # fmt: skip
    request_timeout: Annotated[Seconds | None, Field(description="Longest wait for one.")] = None

    @model_validator(mode="after")
    def each_can_be_served(self) -> BenchArgs:
        """A variant that contradicts itself would be found out after hours of the others."""
        names = [variant.get("name") for variant in self.variants]
        if not all(isinstance(name, str) and NAME.fullmatch(name) for name in names):
            raise ValueError("each variant needs a `name` of letters, digits, - and _")
        if len(set(names)) < len(names):
            raise ValueError("two variants have one name")
        for name, variant in zip(names, self.variants, strict=True):
            try:
                self.of(variant)
            except ValidationError as error:
                raise ValueError(f"variant {name}: {_said(error)}") from None
        return self

    def of(self, variant: Mapping[str, Any]) -> ServeArgs:
        """The server of one variant. It has the address of all of them: they run in turn."""
        shared = self.serve.model_dump(exclude_unset=True, mode="json")
        own = {key: value for key, value in variant.items() if key != "name"}
        return ServeArgs.model_validate_json(json.dumps({**shared, **own}))


def _said(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = f"`{'.'.join(map(str, first['loc']))}`" if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        meant = get_close_matches(str(first["loc"][-1]), ServeArgs.model_fields, n=1)
        return f"unknown key {where}" + (f" (did you mean `{meant[0]}`?)" if meant else "")
    said = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{where} {said}".strip()


class Bench(Step[BenchArgs]):
    """Measure servers with different flags; `out.variant`, `out.concurrency`, `out.tok_s`."""

    name = "bench"
    Args = BenchArgs

    def plan(self, args: BenchArgs, ctx: StepContext) -> StepPlan:
        names = [str(variant["name"]) for variant in args.variants]
        every = [args.of(variant) for variant in args.variants]
        job = dflash_job(
            args,
            ctx,
            (
                "bench",
                *flag("--prompts", shipped(args.prompts, ctx, bundle="prompts")),
                *flags("--variant", map(_variant, names, every)),
                *flags("--concurrency", args.concurrency),
                *flag("--out", args.out),
                *flag("--limit", args.limit),
                *flag("--max-tokens", args.max_tokens),
                *flag("--temperature", args.temperature),
                *flag("--top-p", args.top_p),
                *flag("--top-k", args.top_k),
                *flag("--thinking", args.thinking),
                *flag("--ready-within", args.serve.ready_within),
                *flag("--request-timeout", args.request_timeout),
                *flag("--max-failed", args.max_failed),
                *flag("--min-agreement", args.min_agreement),
            ),
            ports=tuple(sorted({port for one in every for port in one.ports})),
            grace_s=60,
        )
        return StepPlan(
            summary=(_compared(args), *told(job, ctx)),
            job=job,
            precheck=tuple(checks.port_free(port) for port in job.ports),
            done_when=(checks.json_metric(f"{args.out}/report.json", "best.tok_s", above=0.0),),
            out={"path": args.out},
        )


def _compared(args: BenchArgs) -> str:
    """What differs, in words: the command below has whole servers in it."""
    rows = [{key: value for key, value in one.items() if key != "name"} for one in args.variants]
    told = ", ".join(
        str(one["name"]) + (f" {json.dumps(own)}" if own else "")
        for one, own in zip(args.variants, rows, strict=True)
    )
    at_a_time = ", ".join(map(str, args.concurrency))
    return f"compare {told}; each with {at_a_time} requests at a time, {args.limit} prompts at most"


def _variant(name: str, args: ServeArgs) -> str:
    sglang = args.engine == "sglang"
    value = {
        "name": name,
        "argv": server_argv(args, TOKEN),
        "env": environment(args),
        "url": args.url,
        "model": args.model if args.engine == "transformers" else args.served_name,
        "api": "sglang" if sglang else "openai",
    }
    return json.dumps(value, separators=(",", ":"))
