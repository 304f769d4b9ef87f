"""`generate`: completions of prompts by one or more servers, resumable."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dflash.gates import ALWAYS, early_gates
from runbook.steps import checks
from runbook.steps.base import Step, StepContext, StepPlan
from runbook.steps.dflash_job import DflashArgs, dflash_job, flag, flags, shipped, told
from runbook.steps.gate_args import Gates, gate_words
from runbook.steps.object_args import (
    ObjectUrl,
    TransferArgs,
    at_store,
    scoped_keys,
    store_words,
)
from runbook.steps.paths import HostPath, HttpUrl, MaybePath, file_or
from runbook.units import Seconds  # noqa: TC001 (pydantic reads it)


class GenerateArgs(DflashArgs, TransferArgs):
    """Prompts, servers, sampling, limits, and where shards go."""

    prompts: Annotated[
        str,
        *file_or("s3://[^/]", bundle="prompts"),
        Field(description="JSON-lines file on the host, at s3://, or `bundled:NAME.jsonl`."),
    ]
    servers: Annotated[
        tuple[HttpUrl, ...], Field(description="Base URLs; the work is spread over them.")
    ] = ()
    servers_file: Annotated[
        MaybePath, Field(description="A list of servers on the host that may change meanwhile.")
    ] = ""
    model: Annotated[str, Field(description="Model name in the requests.")]
    out: Annotated[HostPath, Field(description="Folder of completions.")]
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
    turns: Annotated[
        Literal["keep", "strip", "regenerate"],
        Field(description="What becomes of assistants' messages in the prompt file."),
    ] = "keep"
    tokenizer: Annotated[
        MaybePath,
        Field(description="The target's folder: exact `<think>` tags, audit by token ids."),
    ] = ""
    concurrency: Annotated[
        int | None, Field(ge=1, description="Most requests a server has at a time.")
    ] = None
    shard_rows: Annotated[int | None, Field(ge=1, description="Rows in a shard.")] = None
    limit: Annotated[int | None, Field(ge=1, description="Only so many prompts.")] = None
    total_tokens: Annotated[
        int | None, Field(ge=1, description="No prompt is begun after so many tokens in all.")
    ] = None
    max_failed: Annotated[
        float | None, Field(ge=0, le=1, description="Share of prompts that may stay unanswered.")
    ] = None
    request_timeout: Annotated[Seconds | None, Field(description="Longest wait for one.")] = None
    attempts: Annotated[
        int | None, Field(ge=1, description="Of one prompt that reached a server; 5.")
    ] = None
    give_up_after: Annotated[
        Seconds | None,
        Field(
            description="With no server answering; 10 minutes. Longer than a server takes to load, "
            "where it may be restarted meanwhile."
        ),
    ] = None
    retry_quarantined: Annotated[
        bool, Field(description="Ask again what was refused for good in an earlier run.")
    ] = False
    min_rows: Annotated[
        int, Field(ge=1, description="Fewer finished completions than this are not enough.")
    ] = 1
    audit_after: Annotated[
        int,
        Field(
            ge=0, description="Rows after which the gates are judged, again and again; 0: never."
        ),
    ] = 500
    gates: Gates
    upload: Annotated[
        ObjectUrl | Literal[""], Field(description="Where shards go as they are sealed.")
    ] = ""

    @model_validator(mode="after")
    def some_server(self) -> GenerateArgs:
        """Either way of naming them is enough."""
        if not self.servers and not self.servers_file:
            raise ValueError("give servers or servers_file")
        return self

    @model_validator(mode="after")
    def enough_prompts(self) -> GenerateArgs:
        """What could never be enough is refused before anything is generated."""
        if self.limit is not None and self.min_rows > self.limit:
            raise ValueError(f"limit {self.limit} can never give the {self.min_rows} of min_rows")
        return self


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
                *flag("--servers", args.servers_file),
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
                *(flag("--turns", args.turns) if args.turns != "keep" else ()),
                *flag("--tokenizer", args.tokenizer),
                *flag("--concurrency", args.concurrency),
                *flag("--shard-rows", args.shard_rows),
                *flag("--limit", args.limit),
                *flag("--total-tokens", args.total_tokens),
                *flag("--max-failed", args.max_failed),
                *flag("--request-timeout", args.request_timeout),
                *flag("--attempts", args.attempts),
                *flag("--give-up-after", args.give_up_after),
                *(("--retry-quarantined",) if args.retry_quarantined else ()),
                *(flag("--audit-after", args.audit_after) if args.audit_after != 500 else ()),
                *flags("--gate", gate_words(args.gates)),
                *flag("--upload", args.upload),
                *(store_words(args, ctx) if args.upload or at_store(args.prompts) else ()),
            ),
        )
        job = replace(job, grants=scoped_keys(args, ctx, read=args.prompts, write=args.upload))
        audited = (
            checks.json_metric(f"{args.out}/early-audit/report.json", "passed", equals=True),
        )
        return StepPlan(
            summary=(*told(job, ctx), *gates_told(args)),
            job=job,
            done_when=(
                checks.json_metric(f"{args.out}/manifest.json", "complete", equals=True),
                checks.rows_at_least(f"{args.out}/shard-*.jsonl", args.min_rows),
                *(audited if args.audit_after else ()),
            ),
            out={"path": args.out, **({"url": args.upload.rstrip("/")} if args.upload else {})},
        )


def gates_told(args: GenerateArgs) -> tuple[str, ...]:
    """What ends the run early, beside what no row may have in any case."""
    if not args.audit_after:
        return ("no early audit: nothing looks at the rows before the end",)
    words = [word for word in gate_words(args.gates) if "${" not in word]
    gates = early_gates(words, thinking=args.thinking)
    shown = ", ".join(gate_words({n: v for n, v in gates.items() if n not in ALWAYS}))
    return (f"gate: after {args.audit_after} rows, and again after as many: {shown}",)
