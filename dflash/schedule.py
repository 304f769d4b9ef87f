"""Learning rates, and whether a run may end later or earlier than it was begun; no torch here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash.train_config import TrainConfig


def warmup_steps(total: int, config: TrainConfig) -> int:
    return max(1, round(config.warmup * total))


def learning_rate(
    step: int, total: int, config: TrainConfig, *, warmup: int | None = None
) -> float:
    """The rate of step 0..total-1: linear warm-up; then cosine, or flat with a cosine tail.

    Args:
        warmup: Steps of the warm-up, of a run whose total has changed since; else a part of it.
    """
    warmup = warmup_steps(total, config) if warmup is None else warmup
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "constant":
        return config.lr
    begin = tail_begin(total, config, warmup)
    done = (step - begin) / max(1, total - begin)
    if done <= 0:
        return config.lr
    floor = config.lr * config.min_lr_ratio
    return floor + (config.lr - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def tail_begin(total: int, config: TrainConfig, warmup: int) -> int:
    """The step with which the rate begins to fall."""
    if config.schedule == "constant":
        return total
    return warmup if config.schedule == "cosine" else total - max(1, round(config.decay * total))


def why_not(done: int, old: int, new: int, config: TrainConfig, warmup: int) -> str:
    """What keeps a run of `done` steps out of `old` from going on to `new`; empty when nothing.

    It may where all its steps so far had the rates that a run of the new length would have had.
    """
    if new < done:
        return f"it has taken {done} steps already"
    if config.schedule == "constant":
        return ""
    if config.schedule == "cosine":
        return "a cosine's rates depend on the number of steps from the start"
    begin = min(tail_begin(old, config, warmup), tail_begin(new, config, warmup))
    if done > begin:
        return f"the rate has to fall from step {begin + 1} on, and {done} steps are taken"
    return ""
