"""From the arguments of `serve` to the command line of a server, and its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.steps.dflash_job import flag
from runbook.steps.serve_args import WORDS

if TYPE_CHECKING:
    from runbook.steps.serve_args import ServeArgs


def server_argv(args: ServeArgs, token: str) -> tuple[str, ...]:
    """The command of one server; `token` is how this start of it is told from another."""
    if args.engine == "sglang":
        return _sglang(args, token)
    if args.engine == "transformers":
        return _transformers(args)
    words = {name: getattr(args, name) for name in WORDS}
    return tuple(word.format(**words) for word in args.command) + args.extra


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
        *flag("--tensor-parallel-size", args.tp if args.tp > 1 else None),
        *flag("--dtype", args.dtype),
        *flag("--context-length", args.context_length),
        *flag("--mem-fraction-static", args.mem_fraction or (0.2 if cpu else None)),
        *flag("--kv-cache-dtype", args.kv_dtype),
        *flag("--max-total-tokens", args.max_total_tokens or (16384 if cpu else None)),
        *flag("--max-running-requests", args.max_running_requests or (16 if cpu else None)),
        *flag("--chunked-prefill-size", args.chunked_prefill),
        *flag("--reasoning-parser", args.reasoning_parser),
        *_speculation(args),
        *_caches(args),
        # Without it an idle scheduler keeps a core busy that its neighbours need.
        "--sleep-on-idle",
        *(("--disable-overlap-schedule",) if cpu else _graphs(args)),
        "--enable-metrics",
        *flag("--log-level-http", "warning"),
        *args.extra,
    )


def _speculation(args: ServeArgs) -> tuple[str, ...]:
    if args.speculation == "mtp":
        return (
            *flag("--speculative-algorithm", "NEXTN"),
            *flag("--speculative-num-steps", args.draft_steps),
            *flag("--speculative-eagle-topk", 1),  # B200's attention refuses more
            *flag("--speculative-num-draft-tokens", args.draft_steps + 1),
        )
    if args.speculation == "dflash":
        return (
            *flag("--speculative-algorithm", "DFLASH"),
            *flag("--speculative-draft-model-path", args.drafter),
            *flag("--speculative-dflash-block-size", args.drafter_block),
            *flag("--speculative-draft-window-size", args.drafter_window),
        )
    return ()


def _caches(args: ServeArgs) -> tuple[str, ...]:
    return (
        *(() if args.radix_cache else ("--disable-radix-cache",)),
        *flag("--mamba-radix-cache-strategy", args.state_strategy),
        *flag("--mamba-full-memory-ratio", args.state_ratio),
        *flag("--mamba-ssm-dtype", args.state_dtype),
        *(("--enable-hierarchical-cache",) if args.hierarchical_cache else ()),
        *flag("--hicache-size", args.hicache_gb),
    )


def _graphs(args: ServeArgs) -> tuple[str, ...]:
    """Decoding above the largest captured batch runs without graphs, and slowly."""
    if any(word.startswith(("--cuda-graph", "--disable-cuda-graph")) for word in args.extra):
        return ()
    return flag("--cuda-graph-max-bs-decode", args.max_running_requests)


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


def environment(args: ServeArgs) -> dict[str, str]:
    """Of one server's process."""
    env = {
        "OMP_NUM_THREADS": str(args.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if args.engine == "sglang":
        # One that failed would hold its GPU for a minute more, for dumps that nobody asked for.
        env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] = "0"
    if args.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif args.gpus:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, args.gpus))
    return env
