"""`serve`: an inference server as a service task: SGLang, or `transformers serve` in its place.

Ready means: our process lives, it is healthy, it answers with our name and this start's token, and
it generated something. A server's own "ready" line proves none of that.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from runbook.steps import checks
from runbook.steps.base import JobPlan, Step, StepArgs, StepContext, StepPlan
from runbook.steps.dflash_job import flag, told
from runbook.units import Seconds  # noqa: TC001 (pydantic reads it)

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.steps.base import Check

# The kernel hands out ports from here on to anybody; one of ours could be taken at any time.
EPHEMERAL = 32768
ServerPort = Annotated[int, Field(ge=1024, lt=EPHEMERAL)]


class ServeArgs(StepArgs):
    """One server."""

    engine: Annotated[
        Literal["sglang", "transformers"],
        Field(
            description="transformers starts in seconds, for trials; it gives no token ids, no "
            "metrics and no identity, and batches nothing."
        ),
    ] = "sglang"
    venv: Annotated[str, Field(description="The serving environment's folder.")]
    model: Annotated[str, Field(description="The model's folder.")]
    served_name: Annotated[str, Field(min_length=1, description="Name in requests.")]
    port: Annotated[ServerPort, Field(description="HTTP port, below the ephemeral ones.")]
    nccl_port: Annotated[
        ServerPort | None,
        Field(description="SGLang's rendezvous, which listens on all interfaces; port + 1000."),
    ] = None
    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    device: Annotated[Literal["cpu", "cuda"], Field(description="Where it computes.")] = "cuda"
    gpus: Annotated[tuple[int, ...], Field(description="GPU numbers that it may see.")] = ()
    dtype: Annotated[str, Field(description="Weights and activations.")] = "auto"
    context_length: Annotated[int | None, Field(ge=1, description="Prompt plus answer.")] = None
    mem_fraction: Annotated[
        float | None, Field(gt=0, lt=1, description="Share of memory for weights, KV and state.")
    ] = None
    max_total_tokens: Annotated[int | None, Field(ge=1, description="Size of the KV pool.")] = None
    max_running_requests: Annotated[int | None, Field(ge=1, description="Batch size limit.")] = None
    reasoning_parser: Annotated[str, Field(description="Such as qwen3.")] = ""
    extra: Annotated[
        tuple[str, ...], Field(description="Further flags, passed on as they are.")
    ] = ()
    threads: Annotated[int, Field(ge=1, description="CPU threads of each process.")] = 1
    ready_within: Annotated[Seconds, Field(description="How long loading may take.")] = 900.0
    grace: Annotated[Seconds, Field(description="From TERM to KILL when it is stopped.")] = 30.0

    @model_validator(mode="after")
    def fits(self) -> ServeArgs:
        """Two ports, and GPUs only where they are used."""
        if self.device == "cpu" and self.gpus:
            raise ValueError("`gpus` has no meaning with device cpu")
        if self.engine == "sglang" and not self.port < self.rendezvous < EPHEMERAL:
            if self.nccl_port is None:
                raise ValueError(
                    f"port + 1000 reaches {EPHEMERAL}: give nccl_port, or a lower port"
                )
            if self.nccl_port == self.port:
                raise ValueError("port and nccl_port are the same")
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
        return f"http://{address}:{self.port}"


def _new_token() -> str:
    return secrets.token_hex(8)


class Serve(Step[ServeArgs]):
    """Serve a model; its address is `${task.NAME.out.url}`, with `out.model` and `out.api`."""

    name = "serve"
    kind = "service"
    Args = ServeArgs

    def __init__(self, *, new_token: Callable[[], str] = _new_token) -> None:
        self._new_token = new_token

    def plan(self, args: ServeArgs, ctx: StepContext) -> StepPlan:
        token = self._new_token()
        sglang = args.engine == "sglang"
        job = JobPlan(
            argv=_sglang(args, token) if sglang else _transformers(args),
            cwd=ctx.work,
            env=_environment(args),
            ports=args.ports,
            grace_s=args.grace,
        )
        api = "sglang" if sglang else "openai"
        # `transformers serve` knows a model by its folder only.
        model = args.served_name if sglang else args.model
        return StepPlan(
            summary=told(job, ctx),
            job=job,
            precheck=tuple(checks.port_free(port) for port in args.ports),
            ready_when=(
                {"process_alive": {}},
                {"http": {"url": f"{args.url}/health", "timeout_s": 30}},
                *(_identity(args, token) if sglang else ()),
                {
                    "http_generate": {
                        "url": args.url, "model": model, "api": api, "timeout_s": 120,
                    }
                },
            ),
            ready_within_s=args.ready_within,
            out={"url": args.url, "model": model, "api": api, "port": args.port},
        )  # fmt: skip


def _identity(args: ServeArgs, token: str) -> tuple[Check, ...]:
    """A second server on the same port, or yesterday's, would answer as healthily as ours."""
    url = f"{args.url}/model_info"
    found = {"served_model_name": args.served_name, "weight_version": token}
    return tuple(
        {"http_identity": {"url": url, "field": field, "equals": value}}
        for field, value in found.items()
    )


def _sglang(args: ServeArgs, token: str) -> tuple[str, ...]:
    cpu = args.device == "cpu"
    return (
        f"{args.venv}/bin/sglang",
        "serve",
        *flag("--model-path", args.model),
        *flag("--served-model-name", args.served_name),
        *flag("--weight-version", token),
        *flag("--device", args.device),
        *flag("--host", args.host),
        *flag("--port", args.port),
        *flag("--nccl-port", args.rendezvous),
        *flag("--dtype", args.dtype),
        *flag("--context-length", args.context_length),
        *flag("--mem-fraction-static", args.mem_fraction or (0.2 if cpu else None)),
        *flag("--max-total-tokens", args.max_total_tokens or (16384 if cpu else None)),
        *flag("--max-running-requests", args.max_running_requests or (16 if cpu else None)),
        *flag("--reasoning-parser", args.reasoning_parser),
        # Without it an idle scheduler keeps a core busy that its neighbours need.
        "--sleep-on-idle",
        *(("--disable-overlap-schedule",) if cpu else ()),
        "--enable-metrics",
        *flag("--log-level-http", "warning"),
        *args.extra,
    )


def _transformers(args: ServeArgs) -> tuple[str, ...]:
    return (
        f"{args.venv}/bin/transformers",
        "serve",
        args.model,
        *flag("--host", args.host),
        *flag("--port", args.port),
        *flag("--device", args.device),
        *flag("--dtype", args.dtype),
        *args.extra,
    )


def _environment(args: ServeArgs) -> dict[str, str]:
    env = {
        "OMP_NUM_THREADS": str(args.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if args.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif args.gpus:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, args.gpus))
    return env
