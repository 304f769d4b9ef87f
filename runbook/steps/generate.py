"""`generate`: completions of prompts by one or more servers, resumable."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, flags, shipped, told
from runbook.units import Seconds  # noqa: TC001 (pydantic reads it)


class GenerateArgs(DflashArgs):
    """Prompts, servers, sampling."""

    prompts: Annotated[
        str, Field(description="JSON-lines file on the host, or `bundled:NAME.jsonl`.")
    ]
    servers: Annotated[
        tuple[str, ...], Field(min_length=1, description="Base URLs; the work is spread over them.")
    ]
    model: Annotated[str, Field(description="Model name in the requests.")]
    out: Annotated[str, Field(description="Folder of completions.")]
    api: Annotated[
        Literal["sglang", "openai"],
        Field(description="sglang returns exact token ids; openai is any compatible server."),
    ] = "sglang"
    max_tokens: Annotated[int | None, Field(ge=1, description="Longest completion.")] = None
    temperature: Annotated[float | None, Field(ge=0, description="0 is greedy.")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="Nucleus.")] = None
    top_k: Annotated[int | None, Field(ge=1, description="Only the best so many tokens.")] = None
    min_p: Annotated[float | None, Field(ge=0, le=1, description="Of the best one's share.")] = None
    presence_penalty: Annotated[float | None, Field(description="Against looping thoughts.")] = None
    seed: Annotated[int | None, Field(description="Each prompt gets its own from it.")] = None
    thinking: Annotated[
        Literal["on", "off", "default"], Field(description="What the chat template is told.")
    ] = "default"
    system: Annotated[str, Field(description="System message before each prompt.")] = ""
    concurrency: Annotated[int | None, Field(ge=1, description="Requests a server.")] = None
    shard_rows: Annotated[int | None, Field(ge=1, description="Rows in a shard.")] = None
    limit: Annotated[int | None, Field(ge=1, description="Only so many prompts.")] = None
    max_failed: Annotated[
        float | None, Field(ge=0, le=1, description="Share of prompts that may stay unanswered.")
    ] = None
    request_timeout: Annotated[Seconds | None, Field(description="Longest wait for one.")] = None
    min_rows: Annotated[
        int, Field(ge=1, description="Fewer finished completions than this are not enough.")
    ] = 1


class Generate(Step[GenerateArgs]):
    """Generate completions."""

    name = "generate"
    Args = GenerateArgs

    def plan(self, args: GenerateArgs, ctx: StepContext) -> StepPlan:
        job = dflash_job(
            args,
            ctx,
            (
                "generate",
                *flag("--prompts", shipped(args.prompts, ctx, bundle="prompts")),
                *flags("--server", args.servers),
                *flag("--model", args.model),
                *flag("--out", args.out),
                *flag("--api", args.api),
                *flag("--max-tokens", args.max_tokens),
                *flag("--temperature", args.temperature),
                *flag("--top-p", args.top_p),
                *flag("--top-k", args.top_k),
                *flag("--min-p", args.min_p),
                *flag("--presence-penalty", args.presence_penalty),
                *flag("--seed", args.seed),
                *flag("--thinking", args.thinking),
                *flag("--system", args.system),
                *flag("--concurrency", args.concurrency),
                *flag("--shard-rows", args.shard_rows),
                *flag("--limit", args.limit),
                *flag("--max-failed", args.max_failed),
                *flag("--request-timeout", args.request_timeout),
            ),
        )
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            done_when=(
                checks.json_metric(f"{args.out}/manifest.json", "complete", equals=True),
                checks.rows_at_least(f"{args.out}/shard-*.jsonl", args.min_rows),
            ),
            out={"path": args.out},
        )
