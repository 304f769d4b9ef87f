"""What a resumed run may change, and what not: a checkpoint goes on as the run that it is of.

Decided from the checkpoint's `provenance.json`, before a process starts or a weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.checkpoint import PROVENANCE
from dflash.errors import DflashError
from dflash.files import read_json
from dflash.schedule import tail_begin, warmup_steps, why_not
from dflash.train_config import contract_changes

if TYPE_CHECKING:
    from pathlib import Path

    from dflash.config import DrafterConfig
    from dflash.train_config import TrainConfig

TOLD = (
    "targets", "drafters", "colocated", "ring", "shard_optimizer", "reduce_dtype", "target", "data",
    "backend", "attention", "head_chunk_rows", "deterministic", "nonfinite", "save_every", "keep",
    "minutes", "eval_split", "eval_docs", "eval_prompts", "eval_tokens", "upload",
)  # fmt: skip
"""May change; what changes is said. Paths may, because contents are compared."""
ELSEWHERE = (
    "taps", "num_taps", "mask_token", "dtype",  # compared as they came out
    "steps", "tokens", "epochs",  # by the number of steps
    "out", "init_from", "devices", "gpu_memory", "timeout_s",
    "endpoint", "region", "addressing", "short_lived_only",
)  # fmt: skip
"""Compared by what they led to, or of the machine and not of the run."""
MEASURE = ("eval_split", "eval_docs")
"""Held-out scores under others of these are of another measure, and not compared."""


SAVED = {
    "step": int, "total": int, "config": {"dtype?": str}, "warmup?": int, "dtype?": str,
}  # fmt: skip
"""What is taken of a checkpoint's provenance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """How a run goes on."""

    step: int
    warmup: int
    """Steps of the warm-up, as the run began with."""
    notes: tuple[str, ...]


def check_resume(
    folder: Path,
    config: TrainConfig,
    shape: DrafterConfig,
    *,
    total: int,
    data: str,
    target: str,
    dtype: str,
) -> Resumed:
    """Refuse another run under this one's name, each difference by its own."""
    saved = read_json(
        folder / PROVENANCE, "checkpoint's provenance", SAVED,
        hint=f"Remove {folder} to resume from the one before it.",
    )  # fmt: skip
    step, before = saved["step"], saved["total"]
    warmup = saved.get("warmup")
    warmup = warmup_steps(before, config) if warmup is None else warmup
    changes = contract_changes(saved["config"], config)
    changes += shape_changes(config, shape)
    before_dtype = saved.get("dtype") or saved["config"].get("dtype") or "auto"
    if before_dtype not in ("auto", dtype):
        changes.append(f"dtype: {before_dtype} in the checkpoint, {dtype} now")
    if saved.get("data", data) != data:
        changes.append("the training data is another")
    if saved.get("target", target) != target:
        changes.append("the target is another: its config or weights differ")
    notes = _told(saved["config"], config)
    if total != before and not changes:
        problem = why_not(step, before, total, config, warmup)
        change = f"steps in all: {before} in the checkpoint, {total} now"
        if problem:
            changes.append(f"{change}, but {problem}")
        else:
            notes.append(change)
            if config.schedule == "wsd":
                begins = tail_begin(total, config, warmup) + 1
                notes.append(f"the learning rate falls from step {begins} on")
    if changes:
        raise DflashError(
            f"{folder} is of a different run: {'; '.join(changes)}.",
            "Restore the old options to resume, or choose another --out "
            "(with --init-from to start from these weights).",
        )
    return Resumed(step=step, warmup=warmup, notes=tuple(notes))


def check_start(folder: Path, config: TrainConfig, shape: DrafterConfig) -> str:
    """A drafter to start from has its shape; refuse options that ask for another. What it has."""
    changes = shape_changes(config, shape)
    if config.sliding_window not in (None, shape.sliding_window):
        changes.append(f"sliding_window: {shape.sliding_window!r}, not {config.sliding_window!r}")
    if changes:
        raise DflashError(
            f"{folder} is a drafter of another shape: {'; '.join(changes)}.",
            "Leave these options out: --init-from decides the shape.",
        )
    window = f", window {shape.sliding_window}" if shape.sliding_window else ""
    return (
        f"shape of {folder}: layers {shape.num_layers}{window}, blocks of {shape.block_size}, "
        f"taps {', '.join(map(str, shape.target_layer_ids))}, mask token {shape.mask_token_id}"
    )


def shape_changes(config: TrainConfig, shape: DrafterConfig) -> list[str]:
    """Options that only choose a shape, where they ask for another than there is."""
    has = {
        "taps": shape.target_layer_ids,
        "num_taps": len(shape.target_layer_ids),
        "mask_token": shape.mask_token_id,
    }
    asked = {name: getattr(config, name) for name in has}
    return [
        f"{name}: {has[name]!r} in the checkpoint, {asked[name]!r} now"
        for name in has
        if asked[name] is not None and asked[name] != has[name]
    ]


def _told(saved: dict[str, Any], config: TrainConfig) -> list[str]:
    now = config.to_json()
    return [
        f"{name}: {saved[name]} before, {now[name]} now"
        for name in TOLD
        if name in saved and saved[name] != now[name]
    ]
