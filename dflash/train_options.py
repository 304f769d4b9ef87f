"""The options of `dflash train` on the command line and in a file; no torch here."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dflash.errors import UsageError
from dflash.files import read_json
from dflash.recipe import bundled, load_recipe
from dflash.train_config import CHOICES, TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable

Number = TypeVar("Number", int, float)
EXAMPLE = """example:
  python -m dflash train --target models/qwen3 --data tokenized --out run --layers 5 \\
      --block-size 16 --anchors-per-doc 512 --batch-tokens 8192 --steps 2000 --targets 3 \\
      --drafters 1
"""
HELP = {
    "target": "folder of the frozen model (safetensors)",
    "data": "folder that `dflash tokenize` wrote",
    "out": "checkpoints, metrics and summary; the same folder again resumes",
    "split": "which part of the data",
    "layers": "drafter layers",
    "block_size": "slots of a block, the anchor included",
    "random_weights": "the target is a config.json only, its weights random: to measure speed",
    "taps": "target layers to read, 0-based outputs (else spread evenly)",
    "num_taps": "how many taps to spread (else 5)",
    "sliding_window": "all layers but the last see this many tokens",
    "mask_token": "id of the mask (else an embedding row that is never used)",
    "init": "weights as the target's last layers, or random",
    "init_from": "start from this drafter's weights",
    "anchors_per_doc": "blocks trained on in each document",
    "max_length": "longer documents are cut to this many tokens",
    "batch_tokens": "tokens in one micro-batch, at most",
    "batch_blocks": "blocks in one micro-batch, at most",
    "batch_docs": "or so many documents in one micro-batch, however long",
    "micro_batches": "micro-batches in a step, over all drafter ranks",
    "steps": "optimiser steps in all",
    "tokens": "or training tokens in all, context included",
    "epochs": "or passes over the data",
    "minutes": "stop with a checkpoint after this much time in all",
    "lr": "peak learning rate",
    "min_lr_ratio": "final learning rate as a part of the peak",
    "schedule": "of the learning rate",
    "warmup": "part of the steps",
    "decay": "part of the steps at the end (wsd)",
    "weight_decay": "of matrices",
    "betas": "of AdamW",
    "clip": "largest norm of the gradient",
    "nonfinite": "a gradient with NaN or infinity: skip the step, or stop",
    "loss": "dpace: slots weigh what hangs on them; ce: exponential decay over slots",
    "gamma": "of the decay (else by block size: 7 for 16, 5 for 10, 4 for 8)",
    "dpace_alpha": "smoothing of D-PACE",
    "head_chunk_rows": "rows of logits alive at once",
    "head_sample": "loss over a sample of the vocabulary of about this size; 0: all of it",
    "dtype": "of the drafter; masters are float32 (auto: bfloat16 on a GPU, else float32)",
    "wire_dtype": "of states that travel (auto: as above)",
    "attention": "fused: kernels of our own",
    "targets": "processes that run the target",
    "drafters": "processes that train",
    "colocated": "every drafter process runs the target too",
    "backend": "between processes",
    "shard_optimizer": "each drafter process keeps its part of masters and moments only",
    "reduce_dtype": "of gradients between drafter processes",
    "ring": "micro-batches a target may work ahead",
    "devices": "GPUs that --calibrate divides (else all; without one, processes: 1)",
    "eval_split": "part of the data that is never trained on, evaluated at each checkpoint",
    "eval_docs": "documents of it; 0: none",
    "eval_prompts": "prompts of it for the true acceptance length; 0: none",
    "eval_tokens": "of the target's own greedy text after each prompt",
    "save_every": "steps between checkpoints, each after an evaluation",
    "keep": "newest checkpoints to keep, besides the best",
    "upload": "s3://BUCKET/PREFIX to upload checkpoints to, and to go on from on a new machine",
    "endpoint": "of an S3-compatible store",
    "region": "of the bucket",
    "addressing": "of the bucket",
    "short_lived_only": "refuse keys without a session token: this machine is not ours",
    "seed": "of weights, order and anchors",
    "gpu_memory": "GiB that a process may take of its GPU (else all of it)",
    "timeout_s": "silence after which a rank gives up on another",
    "deterministic": "the same bits on every run, on a GPU too; slower",
}


METAVARS = {
    "target": "DIR", "data": "DIR", "out": "DIR", "init_from": "DIR", "upload": "URL",
    "endpoint": "URL", "region": "NAME",
    "split": "NAME", "eval_split": "NAME",
}  # fmt: skip
GROUPS = {
    "required, here or in --config": ("target", "data", "out"),
    "the drafter": (
        "layers", "block_size", "taps", "num_taps", "sliding_window", "mask_token", "init",
        "init_from",
    ),
    "how long": ("steps", "tokens", "epochs", "minutes"),
    "batches": (
        "split", "anchors_per_doc", "max_length", "batch_tokens", "batch_blocks", "batch_docs",
        "micro_batches",
    ),
    "optimiser and loss": (
        "lr", "min_lr_ratio", "schedule", "warmup", "decay", "weight_decay", "betas", "clip",
        "nonfinite", "loss", "gamma", "dpace_alpha", "head_chunk_rows", "head_sample",
    ),
    "processes and GPUs": (
        "targets", "drafters", "colocated", "devices", "ring", "shard_optimizer", "gpu_memory",
        "backend", "dtype", "wire_dtype", "reduce_dtype", "attention", "timeout_s",
    ),
    "evaluation and checkpoints": (
        "save_every", "keep", "eval_split", "eval_docs", "eval_prompts", "eval_tokens",
    ),
    "store of checkpoints": ("upload", "endpoint", "region", "addressing", "short_lived_only"),
    "trials": ("seed", "deterministic", "random_weights"),
}  # fmt: skip
"""How `--help` sorts them; a test holds it against the options there are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.usage = f"{parser.prog} --target DIR --data DIR --out DIR [options]"
    parser.add_argument("--config", type=Path, help="JSON file with any of these options")
    parser.add_argument(
        "--recipe", metavar="NAME", help=f"options to start from: {', '.join(bundled())}, or a file"
    )
    parser.add_argument(
        "--calibrate", action="store_true",
        help="measure target, drafter and link for some seconds and choose the split by that",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate-only", action="store_true", help="measure, say what would be chosen, and end"
    )
    fields = {field.name: field for field in dataclasses.fields(TrainConfig)}
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add(group, fields[name])


def _add(group: argparse._ArgumentGroup, field: dataclasses.Field[Any]) -> None:
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    flag = "--" + field.name.replace("_", "-")
    note = HELP[field.name]
    if field.default not in (dataclasses.MISSING, None, False, ""):
        note += f" (default {field.default})"
    common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": note}
    kind = str(field.type).removesuffix(" | None")
    if kind == "bool":
        group.add_argument(flag, action="store_true", **common)
    elif kind.startswith("tuple"):
        parse = _integers if "int" in kind else _numbers
        group.add_argument(flag, type=parse, metavar="A,B", **common)
    elif field.name in CHOICES:
        group.add_argument(flag, choices=CHOICES[field.name], **common)
    else:
        metavar = METAVARS.get(field.name, {"int": "N", "float": "X"}.get(kind, "TEXT"))
        group.add_argument(flag, type=kinds[kind], metavar=metavar, **common)


def _integers(text: str) -> tuple[int, ...]:
    return _list(text, int, "1,16,31")


def _numbers(text: str) -> tuple[float, ...]:
    return _list(text, float, "0.9,0.95")


def _list(text: str, kind: Callable[[str], Number], example: str) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list like {example}") from None


def config_from(args: argparse.Namespace) -> TrainConfig:
    """The recipe's options, overridden by the file's, overridden by those on the command line."""
    given = {name: value for name, value in vars(args).items() if name in _names()}
    values = load_recipe(args.recipe, _names()) if args.recipe else {}
    values |= read_json(args.config, "training configuration") if args.config else {}
    values |= given
    missing = [name for name in ("target", "data", "out") if not values.get(name)]
    if missing:
        raise UsageError(f"{', '.join('--' + name for name in missing)} is missing.", EXAMPLE)
    return TrainConfig.from_json(values)


def _names() -> set[str]:
    return {field.name for field in dataclasses.fields(TrainConfig)}
