"""The arguments of `serve`, and what of them cannot be meant."""

from __future__ import annotations

import re
from string import Formatter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from runbook.serving.flags import LATEST, VERSIONS, problem_of
from runbook.steps.base import StepArgs
from runbook.steps.paths import MaybePath  # noqa: TC001 (pydantic reads it)
from runbook.units import Seconds, Shape

# The kernel hands out ports from here on to anybody; one of ours could be taken at any time.
EPHEMERAL = 32768
WORDS = ("venv", "model", "served_name", "host", "port", "dtype", "context_length", "mem_fraction",
         "tp")  # fmt: skip
"""What a command template may name."""
_REFERENCE = re.compile(r"\$\{[^{}]*\}")
"""Still in the words while a runbook file is judged; its value is put in before the template's."""
ServerPort = Annotated[int, Field(ge=1024, lt=EPHEMERAL)]


class ServeArgs(StepArgs):
    """One server."""

    engine: Annotated[
        Literal["sglang", "transformers", "command"],
        Field(
            description="transformers starts in seconds, for trials; it gives no token ids, no "
            "metrics and no identity, and batches nothing. command: any other server that speaks "
            "the OpenAI API, started as `command` says."
        ),
    ] = "sglang"
    version: Annotated[
        str,
        Shape(r"^\d+\.\d+\.\d+\S*$", "a release, such as 0.5.23"),
        Field(
            description="Of SGLang. Flags come and go with it: those of a release we know are "
            f"held against its own list ({', '.join(VERSIONS)}).",
        ),
    ] = LATEST
    venv: Annotated[MaybePath, Field(description="The serving environment's folder.")] = ""
    command: Annotated[
        tuple[str, ...],
        Field(
            description="With engine command: its words, with {model}, {served_name}, {host}, "
            "{port}, {dtype}, {context_length}, {mem_fraction}, {tp} and {venv} put in."
        ),
    ] = ()
    model: Annotated[str, Field(description="The model's folder.")]
    served_name: Annotated[str, Field(min_length=1, description="Name in requests.")]
    port: Annotated[ServerPort, Field(description="HTTP port, below the ephemeral ones.")]
    nccl_port: Annotated[
        ServerPort | None,
        Field(description="SGLang's rendezvous, which listens on all interfaces; port + 1000."),
    ] = None
    host: Annotated[
        str,
        Shape(r"^[A-Za-z0-9.:_-]+$|\$\{", "an address or a host name"),
        Field(description="Address to listen on."),
    ] = "127.0.0.1"
    device: Annotated[Literal["cpu", "cuda"], Field(description="Where it computes.")] = "cuda"
    gpus: Annotated[tuple[int, ...], Field(description="GPU numbers that it may see.")] = ()
    tp: Annotated[int, Field(ge=1, description="GPUs that share one model (tensor parallel).")] = 1
    dtype: Annotated[str, Field(description="Weights and activations.")] = "auto"
    context_length: Annotated[int | None, Field(ge=1, description="Prompt plus answer.")] = None
    mem_fraction: Annotated[
        float | None, Field(gt=0, lt=1, description="Share of memory for weights, KV and state.")
    ] = None
    kv_dtype: Annotated[str, Field(description="Of the KV pool; fp8_e4m3 halves it.")] = ""
    max_total_tokens: Annotated[int | None, Field(ge=1, description="Size of the KV pool.")] = None
    max_running_requests: Annotated[
        int | None,
        Field(
            ge=1,
            description="Batch size limit. With speculation it must be given: SGLang "
            "takes 48 by itself.",
        ),
    ] = None
    chunked_prefill: Annotated[
        int | None, Field(ge=1, description="Tokens of a prompt that are read at a time.")
    ] = None
    reasoning_parser: Annotated[str, Field(description="Such as qwen3.")] = ""
    radix_cache: Annotated[
        bool,
        Field(
            description="Keep prefixes. Off, a hybrid model needs one state a request, not five."
        ),
    ] = True
    speculation: Annotated[
        Literal["none", "mtp", "dflash"],
        Field(description="mtp: the model's own head; dflash: a drafter of ours."),
    ] = "none"
    draft_steps: Annotated[
        int, Field(ge=1, le=16, description="Tokens that mtp drafts at a time.")
    ] = 3
    drafter: Annotated[MaybePath, Field(description="Folder of the dflash drafter.")] = ""
    drafter_block: Annotated[
        int | None, Field(ge=2, description="Its block size; its config.json's by default.")
    ] = None
    drafter_window: Annotated[
        int | None, Field(ge=1, description="How far back its attention looks.")
    ] = None
    state_ratio: Annotated[
        float | None,
        Field(
            gt=0,
            description="Hybrid models: state pool to KV pool. 0.9 by default is too "
            "little for thinking: see docs/serving.md.",
        ),
    ] = None
    state_dtype: Annotated[
        Literal["", "float32", "bfloat16", "float16"],
        Field(description="Hybrid models: of a recurrent state; bfloat16 halves it."),
    ] = ""
    state_strategy: Annotated[
        Literal["", "auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"],
        Field(description="Hybrid models: how the radix cache keeps states."),
    ] = ""
    hierarchical_cache: Annotated[
        bool,
        Field(
            description="A second cache in host memory. Compare with and without it first, by a "
            "`bench` task: it has returned wrong text on hybrid models."
        ),
    ] = False
    hicache_gb: Annotated[
        int | None, Field(ge=1, description="Its size for this server, beside models in /dev/shm.")
    ] = None
    extra: Annotated[
        tuple[str, ...], Field(description="Further flags, passed on as they are.")
    ] = ()
    threads: Annotated[int, Field(ge=1, description="CPU threads of each process.")] = 1
    stagger: Annotated[
        Seconds,
        Field(
            description="Started so long after another server on the host: many that load at "
            "once stall each other."
        ),
    ] = 3.0
    ready_within: Annotated[Seconds, Field(description="How long loading may take.")] = 900.0
    grace: Annotated[Seconds, Field(description="From TERM to KILL when it is stopped.")] = 30.0
    probe_every: Annotated[
        Seconds, Field(description="While nothing moves in its metrics, it is probed so often.")
    ] = 30.0
    probe_timeout: Annotated[Seconds, Field(description="How long a probe may take.")] = 30.0
    stuck_after: Annotated[
        Seconds, Field(description="Requests run and no token comes: then it must generate.")
    ] = 120.0
    strikes: Annotated[
        int, Field(ge=2, description="Failed probes in a row that make it unhealthy.")
    ] = 3

    @model_validator(mode="after")
    def fits(self) -> ServeArgs:
        """What contradicts itself, or would fail after minutes of loading."""
        problem = _problem(self)
        if problem:
            raise ValueError(problem)
        return self

    @property
    def rendezvous(self) -> int:
        """SGLang's second port."""
        return self.nccl_port if self.nccl_port is not None else self.port + 1000

    @property
    def ports(self) -> tuple[int, ...]:
        """All that must be free."""
        return (self.port, self.rendezvous) if self.engine == "sglang" else (self.port,)

    @property
    def url(self) -> str:
        """Base URL for clients on the same host."""
        address = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        return f"http://{f'[{address}]' if ':' in address else address}:{self.port}"


def _problem(args: ServeArgs) -> str | None:
    if args.device == "cpu" and args.gpus:
        return "`gpus` has no meaning with device cpu"
    if args.gpus and len(args.gpus) != args.tp:
        return f"{len(args.gpus)} gpus and tp {args.tp}: a server takes as many GPUs as its tp"
    if args.engine == "command":
        return _problem_of_command(args)
    if not args.venv:
        return "`venv` is missing"
    if args.command:
        return f"`command` has no meaning with engine {args.engine}"
    if args.engine == "transformers":
        return None
    if not args.port < args.rendezvous < EPHEMERAL:
        if args.nccl_port is None:
            return f"port + 1000 reaches {EPHEMERAL}: give nccl_port, or a lower port"
        if args.nccl_port == args.port:
            return "port and nccl_port are the same"
    return _contradiction(args) or problem_of(args.extra, args.version)


def _problem_of_command(args: ServeArgs) -> str | None:
    if not args.command:
        return 'engine command needs `command`, such as [vllm, serve, "{model}", --port, "{port}"]'
    known = set(WORDS)
    words = [_REFERENCE.sub("", word) for word in args.command]
    for word in words:
        try:
            unknown = {name for _, name, _, _ in Formatter().parse(word) if name} - known
        except ValueError as error:
            return f"`command` has {word!r}: {error}; write {{{{ for a brace"
        if unknown:
            return (
                f"`command` has {{{min(unknown)}}}, which is nothing: it may be "
                f"{', '.join(f'{{{name}}}' for name in sorted(known))}"
            )
        empty = [
            name for name in WORDS if f"{{{name}}}" in word and getattr(args, name) in (None, "")
        ]
        if empty:
            return f"`command` names {{{empty[0]}}}, and `{empty[0]}` is not given"
    if not any("{port}" in word for word in words):
        return "`command` must say the port: put {port} into it"
    return None


def _contradiction(args: ServeArgs) -> str | None:
    speculates = args.speculation != "none"
    if args.speculation == "dflash" and not args.drafter:
        return "speculation dflash needs `drafter`, its folder"
    if args.drafter and args.speculation != "dflash":
        return "`drafter` has no meaning without `speculation: dflash`"
    if speculates and args.max_running_requests is None:
        return "with speculation SGLang limits itself to 48 requests: give max_running_requests"
    if speculates and args.device == "cpu":
        return "speculation needs a GPU"
    if args.hierarchical_cache and not args.radix_cache:
        return "hierarchical_cache needs the radix cache"
    if args.hierarchical_cache and args.hicache_gb is None:
        return (
            "give hicache_gb: without it each server takes 80 % of the free memory, and servers "
            "that start together take more than there is"
        )
    if args.hicache_gb is not None and not args.hierarchical_cache:
        return "`hicache_gb` has no meaning without `hierarchical_cache: true`"
    if args.hierarchical_cache and args.device == "cpu":
        return "hierarchical_cache needs a GPU"
    return None
