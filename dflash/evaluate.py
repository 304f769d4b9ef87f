"""`dflash eval`: acceptance length, speed and the lossless verdict of a drafter, by real decoding.

Runs every prompt through plain greedy decoding, the trained drafter and the baselines, on one
target. Finished prompts are kept in OUT.partial.jsonl, so an interrupted run goes on where it was;
the report appears whole or not at all. The numbers, but for seconds, do not depend on --workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import __version__, heldout
from dflash.config import IDS, DrafterConfig, read_target_config, text_part
from dflash.errors import GateFailed, InputInvalid, UsageError
from dflash.evaluation_report import REPORT, summarise, table
from dflash.export import step_folder
from dflash.files import read_json, sha256_file, write_json
from dflash.partial import Partial
from dflash.progress import Progress, write_out
from dflash.workers import records_of

if TYPE_CHECKING:
    import argparse

    from dflash.bench import BenchSpec

FORMAT = "dflash-eval/1"
PARTIAL_SUFFIX = ".partial.jsonl"
EXAMPLE = """example:
  python -m dflash eval --target models/smollm2 --drafter out/export --data tokenized \\
      --limit 12 --max-new-tokens 48 --workers 2 --out out/eval.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--target", required=True, type=Path, metavar="DIR", help="the target's folder")
    add("--drafter", required=True, type=Path, metavar="DIR", help="an export or a checkpoint")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="DIR", help="tokenized set")
    source.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines with messages")
    add("--out", required=True, type=Path, metavar="FILE", help="the report (JSON)")
    add("--split", default="heldout", help="of --data (default: %(default)s)")
    add("--baselines", default="untrained,lookup", help="comma list (default: %(default)s)")
    add("--max-new-tokens", type=int, default=256, metavar="N", help="(default: %(default)s)")
    add("--limit", type=int, metavar="N", help="at most so many prompts")
    add("--max-prompt-tokens", type=int, metavar="N", help="leave out longer prompts")
    add("--thinking", choices=sorted(heldout.THINKING), default="default", help="with --prompts")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0)
    add("--seed", type=int, default=0, help="choice of prompts, untrained weights, bootstrap")
    add("--ignore-eos", action="store_true", help="always produce --max-new-tokens")
    add("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    add("--threads", type=int, metavar="N", help="per worker (default: 1 on a CPU)")
    add("--dtype", choices=("float32", "bfloat16"), help="(default: float32 on a CPU)")
    add("--device", default="auto", help="cpu, cuda, cuda:1 (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    report = evaluate(
        target=args.target,
        drafter=args.drafter,
        data=args.data,
        prompt_file=args.prompts,
        out=args.out,
        split=args.split,
        baselines=tuple(name for name in args.baselines.split(",") if name),
        max_new_tokens=args.max_new_tokens,
        limit=args.limit,
        max_prompt_tokens=args.max_prompt_tokens,
        thinking=args.thinking,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        workers=args.workers,
        threads=args.threads,
        dtype=args.dtype,
        device=args.device,
        progress=Progress(echo=sys.stderr),
    )
    sys.stdout.write(table(report) + "\n")
    if not report["lossless"]["ok"]:
        raise GateFailed(
            "speculative text differs from plain greedy text by more than rounding",
            f"See methods.*.lossless.divergences in {args.out}.",
        )
    return 0


def evaluate(
    *,
    target: Path,
    drafter: Path,
    out: Path,
    data: Path | None = None,
    prompt_file: Path | None = None,
    split: str = "heldout",
    baselines: tuple[str, ...] = ("untrained", "lookup"),
    max_new_tokens: int = 256,
    limit: int | None = None,
    max_prompt_tokens: int | None = None,
    thinking: str = "default",
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    ignore_eos: bool = False,
    workers: int = 1,
    threads: int | None = None,
    dtype: str | None = None,
    device: str = "auto",
    progress: Progress,
) -> dict[str, Any]:
    """Run what is not yet done, write the report, return it."""
    _check_numbers(max_new_tokens=max_new_tokens, workers=workers, limit=limit)
    drafter = step_folder(drafter)
    config = DrafterConfig.read(drafter)
    target_config = read_target_config(target / "config.json")
    chosen = _prompts(
        data, prompt_file, target=target, split=split, thinking=thinking, limit=limit,
        longest=max_prompt_tokens, seed=seed,
    )  # fmt: skip
    _check_prompts(chosen, target_config, max_new_tokens, config)
    progress.emit("phase", message=f"{len(chosen.prompts)} prompts")

    from dflash.bench import BenchSpec

    spec = BenchSpec(
        target=str(target),
        drafter=str(drafter),
        methods=_methods(baselines),
        **_where(device, dtype, threads),
        max_new_tokens=max_new_tokens,
        stop_ids=() if ignore_eos else stop_ids(target, target_config),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
    )
    request = _request(spec, chosen, target, drafter, config)
    digest = _digest(request)
    if (finished := _finished(out, digest)) is not None:
        progress.emit("phase", message=f"{out} is already the report of this evaluation")
        _tell(finished, out, progress)
        return finished
    records = _run(spec, chosen.prompts, out, digest, workers, progress)
    report = {
        "format": FORMAT,
        **summarise(records, spec.methods, greedy=temperature == 0, seed=seed),
        "request": request,
        "request_sha256": digest,
        "run": {"workers": workers},
    }
    write_json(out, report)
    partial_path(out).unlink(missing_ok=True)
    _tell(report, out, progress)
    return report


def _methods(baselines: tuple[str, ...]) -> tuple[str, ...]:
    from dflash.bench import BASELINES, PLAIN, TRAINED

    for name in baselines:
        if name not in BASELINES:
            raise UsageError(f"no baseline {name!r}", f"There are {', '.join(BASELINES)}.")
    return (PLAIN, TRAINED, *baselines)


def _where(device: str, dtype: str | None, threads: int | None) -> dict[str, Any]:
    """Device, number type and threads, each as asked for or as suits the machine."""
    place = _place(device)
    on_cpu = place == "cpu"
    return {
        "device": place,
        "dtype": dtype or ("float32" if on_cpu else "bfloat16"),
        # More threads than free cores make small forwards several times slower, not faster.
        "threads": threads or (1 if on_cpu else None),
    }


def _finished(out: Path, digest: str) -> dict[str, Any] | None:
    """The report that stands at `out`, when it answers this very request."""
    if not out.is_file():
        return None
    try:
        report = read_json(out, "report", REPORT)
    except InputInvalid:  # something else, or torn by another hand: it is written anew
        return None
    same = report.get("format") == FORMAT and report.get("request_sha256") == digest
    return report if same else None


def partial_path(out: Path) -> Path:
    return out.with_name(out.name + PARTIAL_SUFFIX)


def stop_ids(target: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """End tokens: generation_config.json when it names any, as engines do, else config.json."""
    path = target / "generation_config.json"
    found: Any = None
    if path.exists():
        found = read_json(path, "generation config", {"eos_token_id?": IDS}).get("eos_token_id")
    if found is None:
        found = config.get("eos_token_id", text_part(config).get("eos_token_id"))
    return tuple(sorted(found)) if isinstance(found, list) else () if found is None else (found,)


def _check_numbers(*, max_new_tokens: int, workers: int, limit: int | None) -> None:
    for name, value in (("max-new-tokens", max_new_tokens), ("workers", workers), ("limit", limit)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}", "It must be at least 1.")


def _prompts(
    data: Path | None,
    prompt_file: Path | None,
    *,
    target: Path,
    split: str,
    thinking: str,
    limit: int | None,
    longest: int | None,
    seed: int,
) -> heldout.PromptSet:
    if data is not None:
        return heldout.from_tokenized(data, split=split, limit=limit, longest=longest, seed=seed)
    if prompt_file is None:
        raise UsageError("no prompts", "Give --data or --prompts.")
    return heldout.from_messages(
        prompt_file, target=target, thinking=thinking, limit=limit, longest=longest, seed=seed
    )


def _check_prompts(
    chosen: heldout.PromptSet, target: dict[str, Any], new_tokens: int, config: DrafterConfig
) -> None:
    text = text_part(target)
    rows, room = int(text["vocab_size"]), int(text.get("max_position_embeddings", 1 << 30))
    for prompt in chosen.prompts:
        if max(prompt.tokens) >= rows or min(prompt.tokens) < 0:
            raise InputInvalid(
                f"prompt {prompt.id!r} holds token {max(prompt.tokens)}, "
                f"the target has {rows} embedding rows",
                "The set was tokenized for another target; tokenize it with this one's tokenizer.",
            )
        needed = len(prompt.tokens) + new_tokens + config.block_size
        if needed > room:
            raise InputInvalid(
                f"prompt {prompt.id!r} of {len(prompt.tokens)} tokens with {new_tokens} new ones "
                f"does not fit the target's {room} positions",
                f"Use --max-prompt-tokens {max(1, room - new_tokens - config.block_size)}.",
            )


def _place(device: str) -> str:
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _request(
    spec: BenchSpec,
    chosen: heldout.PromptSet,
    target: Path,
    drafter: Path,
    config: DrafterConfig,
) -> dict[str, Any]:
    """All that decides the numbers. Its digest says whether finished prompts still count."""
    import torch
    import transformers

    listed = [[p.id, p.tokens] for p in chosen.prompts]
    return {
        "target": {"path": str(target), **_weights(target, whole=False)},
        "drafter": {
            "path": str(drafter),
            "block_size": config.block_size,
            "taps": list(config.target_layer_ids),
            **_weights(drafter, whole=True),
        },
        "prompts": {
            **chosen.source,
            "skipped": chosen.skipped,
            "count": len(chosen.prompts),
            "sha256": hashlib.sha256(json.dumps(listed).encode()).hexdigest(),
        },
        "sampling": {
            "temperature": spec.temperature,
            "top_p": spec.top_p,
            "top_k": spec.top_k,
            "max_new_tokens": spec.max_new_tokens,
            "stop_ids": list(spec.stop_ids),
        },
        "methods": list(spec.methods),
        "lookup": {"longest": spec.lookup_longest, "shortest": spec.lookup_shortest},
        "seed": spec.seed,
        "compute": {"device": spec.device, "dtype": spec.dtype, "threads": spec.threads},
        "versions": {
            "dflash-runbook": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }


def _weights(folder: Path, *, whole: bool) -> dict[str, Any]:
    """Digest of config and weights; of a large target's weights only names, sizes and headers."""
    digest = hashlib.sha256(_bytes(folder / "config.json"))
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        digest.update(sha256_file(path).encode() if whole else _bytes(path, limit=1 << 20))
    return {"sha256": digest.hexdigest(), "digest_of": "all" if whole else "headers"}


def _bytes(path: Path, *, limit: int = -1) -> bytes:
    with path.open("rb") as handle:
        return handle.read(limit)


def _digest(request: dict[str, Any]) -> str:
    # Paths may move (a checkpoint is renamed, a folder is mounted elsewhere); contents decide.
    bare = {k: {**v, "path": ""} if isinstance(v, dict) else v for k, v in request.items()}
    return hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()


def _run(
    spec: BenchSpec,
    todo: list[heldout.TokenPrompt],
    out: Path,
    digest: str,
    workers: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Records of all prompts in the prompts' order; those of an earlier run are not run again."""
    with Partial(partial_path(out), digest) as partial:
        left = [p for p in todo if p.id not in partial.records]
        if partial.records:
            progress.emit("phase", message=f"{len(partial.records)} prompts were done before")
        with contextlib.closing(records_of(spec, left, min(workers, len(left)))) as records:
            for record in records:
                partial.add(record)
                progress.emit(
                    "step",
                    done=len(partial.records),
                    total=len(todo),
                    unit="prompts",
                    message=str(record["id"]),
                    metrics=_lengths(record),
                )
        return [partial.records[p.id] for p in todo]


def _lengths(record: dict[str, Any]) -> dict[str, float]:
    found = {}
    for name, method in record["methods"].items():
        rounds = method["rounds"]
        if name != "plain" and rounds:
            found[name] = sum(r[2] for r in rounds) / len(rounds)
    return found


def _tell(report: dict[str, Any], out: Path, progress: Progress) -> None:
    trained = report["methods"]["trained"]
    numbers = {
        "macro": trained["acceptance_length"]["macro"],
        "micro": trained["acceptance_length"]["micro"],
        "speedup": trained["speed"]["speedup"],
        "lossless": report["lossless"]["verdict"],
    }
    for name, method in report["methods"].items():
        if name not in ("plain", "trained"):
            numbers[name] = method["acceptance_length"]["macro"]
    gain = report["comparison"].get("trained_minus_untrained")
    if gain:
        numbers |= {"gain": gain["mean"], "gain_low": gain["low"], "gain_high": gain["high"]}
    progress.emit("done", done=report["prompts"], total=report["prompts"], unit="prompts",
                  message=str(out), metrics=numbers)  # fmt: skip
    write_out({"report": str(out), "prompts": report["prompts"], **numbers})
