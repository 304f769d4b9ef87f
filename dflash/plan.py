"""`dflash plan`: storage, memory, topology and time of a training, before anything is rented.

Arithmetic only: the target's `config.json`, options and the set's statistics; no torch, no GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import plan_inputs
from dflash.config import DrafterConfig, read_target_config
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.files import write_json
from dflash.plan_inputs import GPUS, LINKS, Machine, Work
from dflash.plan_memory import plan_memory
from dflash.plan_shapes import TargetShape
from dflash.plan_storage import plan_storage
from dflash.plan_time import plan_time
from dflash.plan_topology import plan_topology
from dflash.progress import write_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from dflash.plan_report import PlanReport

KINDS = ("storage", "memory", "topology", "time")
EXAMPLE = """examples:
  python -m dflash plan storage --target models/qwen3.6-27b --documents 900000 --mean-tokens 2068
  python -m dflash plan topology --target models/qwen3.6-27b --data tokenized --gpu h200 --gpus 8"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument(
        "kind", choices=KINDS,
        help="bytes of stored states; memory per GPU; split of the GPUs; hours per epoch",
    )  # fmt: skip
    add = parser.add_argument
    add("--target", required=True, type=Path, metavar="DIR", help="the model, or its config.json")
    group = parser.add_argument_group("the set")
    add = group.add_argument
    add("--data", type=Path, metavar="DIR", help="a tokenized set: its manifest has the numbers")
    add("--split", default="train", help="which part of it (default: %(default)s)")
    add("--documents", type=int, metavar="N", help="instead of --data, or of its number")
    add("--mean-tokens", type=float, metavar="N", help="of a document, prompt included")
    group = parser.add_argument_group("the drafter and its batches, as in `dflash train`")
    add = group.add_argument
    add("--layers", type=int, default=5, metavar="N", help="(default: %(default)s)")
    add("--block-size", type=int, default=16, metavar="N", help="(default: %(default)s)")
    add("--num-taps", type=int, metavar="N", help="(default: 5)")
    add("--taps", type=_integers, metavar="A,B", help="or the layers themselves")
    add("--sliding-window", type=int, metavar="N", help="of all layers but the last")
    add("--anchors-per-doc", type=int, default=512, metavar="N", help="(default: %(default)s)")
    add("--max-length", type=int, default=4096, metavar="N", help="(default: %(default)s)")
    add("--batch-docs", type=int, metavar="N", help="(default: as calibrated, or 4)")
    add("--batch-tokens", type=int, metavar="N", help="or so many tokens, as training packs them")
    add("--batch-blocks", type=int, metavar="N", help="and at most so many blocks")
    add("--micro-batches", type=int, metavar="N", help="(default: as calibrated, or 1)")
    add("--ring", type=int, default=2, metavar="N", help="(default: %(default)s)")
    add("--head-chunk-rows", type=int, default=4096, metavar="N", help="(default: %(default)s)")
    add("--epochs", type=float, default=1.0, metavar="N", help="(default: %(default)s)")
    group = parser.add_argument_group("the machine")
    add = group.add_argument
    add("--gpu", default="h200", metavar="NAME", help=f"{', '.join(GPUS)} (default: %(default)s)")
    add("--gpus", type=int, metavar="N", help="(default: as calibrated, or 4)")
    add("--link", default="auto", metavar="NAME", help=f"{', '.join(LINKS)} (default: the best)")
    add(
        "--target-fraction", type=float, default=plan_inputs.TARGET_FRACTION, metavar="X",
        help="of peak bf16 that the target reaches (default: %(default)s)",
    )  # fmt: skip
    add(
        "--drafter-fraction", type=float, default=plan_inputs.DRAFTER_FRACTION, metavar="X",
        help="of peak bf16 that the drafter reaches (default: %(default)s)",
    )  # fmt: skip
    add(
        "--calibrate", type=Path, metavar="FILE",
        help="JSON of what was measured there instead: target_tflops, drafter_tflops, link_gb_s; "
        "or what `dflash train --calibrate` left, its batch and number of GPUs with it",
    )  # fmt: skip
    group = parser.add_argument_group("what storage compares")
    add = group.add_argument
    add("--truncate", type=int, default=1024, metavar="N", help="tokens (default: %(default)s)")
    add("--subset", type=int, default=100_000, metavar="N", help="documents (default: %(default)s)")
    add("--chunk", type=int, default=10_000, metavar="N", help="documents (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="numbers in bytes, seconds and FLOPs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the same JSON in a file")


def run(args: argparse.Namespace) -> int:
    report = plan(args)
    as_json = report.to_json()
    shown = json.dumps(as_json, indent=1, ensure_ascii=False) + "\n" if args.json else report.text()
    sys.stdout.write(shown)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.out, as_json)
    write_out(as_json)
    return 0


def plan(args: argparse.Namespace) -> PlanReport:
    measured = plan_inputs.read_measurements(args.calibrate) if args.calibrate else None
    work = work_of(args, measured or {})
    if args.kind == "storage":
        return plan_storage(work, truncate=args.truncate, subset=args.subset, chunk=args.chunk)
    if args.gpus is None:
        args.gpus = int((measured or {}).get("devices", 4))
    chosen = _machine(args, args.gpu, args.link, measured)
    if args.kind == "memory":
        return plan_memory(work, chosen)
    if args.kind == "topology":
        return plan_topology(work, chosen)
    # What was measured on one kind of GPU, or its link, says nothing of another.
    return plan_time(work, chosen, lambda name: _machine(args, name, "auto", None))


def work_of(args: argparse.Namespace, measured: Mapping[str, Any]) -> Work:
    """Target, drafter and set from the options; every number named by where it came from."""
    path = args.target / "config.json" if args.target.is_dir() else args.target
    config = read_target_config(path)
    target = TargetShape.from_config(config, str(path))
    documents, mean = _statistics(args)
    for name in (
        "layers",
        "block_size",
        "num_taps",
        "sliding_window",
        "batch_docs",
        "batch_tokens",
        "batch_blocks",
    ):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is {value}", "It is at least one.")
    return Work(
        target=target,
        drafter=_drafter(args, config, path),
        documents=documents,
        mean_tokens=mean,
        anchors=args.anchors_per_doc,
        max_length=args.max_length,
        micro_batches=args.micro_batches or int(measured.get("micro_batches", 1)),
        ring=args.ring,
        head_chunk_rows=args.head_chunk_rows,
        epochs=args.epochs,
        **_batch(args, mean, measured),
    )


def _batch(args: argparse.Namespace, mean: float, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Documents of a micro-batch, and the most it may hold; as measured unless told otherwise."""
    tokens, blocks = args.batch_tokens, args.batch_blocks
    if args.batch_docs is not None:
        return {"batch_docs": args.batch_docs}
    if tokens is None and blocks is None:
        known = {key: int(measured.get(key, 0)) or None for key in ("most_tokens", "most_blocks")}
        return {"batch_docs": measured.get("batch_docs", 4), **known}
    bounds = [tokens / min(mean, args.max_length)] if tokens else []
    bounds += [blocks / args.anchors_per_doc] if blocks else []
    return {"batch_docs": max(1.0, min(bounds)), "most_tokens": tokens, "most_blocks": blocks}


def _drafter(args: argparse.Namespace, config: dict, path: Path) -> DrafterConfig:
    try:
        return DrafterConfig.from_target_config(
            config,
            num_layers=args.layers,
            block_size=args.block_size,
            taps=args.taps,
            num_taps=args.num_taps,
            sliding_window=args.sliding_window,
            mask_token_id=0,  # which one is of no weight here
        )
    except (TypeError, ValueError) as error:
        raise InputInvalid(
            f"{path} makes no drafter: {error}", "Use the config.json it was published with."
        ) from error


def _statistics(args: argparse.Namespace) -> tuple[int, float]:
    documents, mean = args.documents, args.mean_tokens
    if args.data is not None:
        rows, found = plan_inputs.set_statistics(args.data, args.split)
        return rows if documents is None else documents, found if mean is None else mean
    if documents is None or mean is None:
        raise UsageError(
            "how large the set is remains open",
            "Name a tokenized set with --data, or both --documents and --mean-tokens.",
        )
    return documents, mean


def _machine(
    args: argparse.Namespace, gpu: str, link: str, measured: dict[str, float] | None
) -> Machine:
    return plan_inputs.machine(
        gpu,
        args.gpus,
        link=link,
        target_fraction=args.target_fraction,
        drafter_fraction=args.drafter_fraction,
        measured=measured,
    )


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise DflashError(
            f"--taps {text!r} is no list of layers", "For example --taps 1,16,31,46,61."
        ) from None
