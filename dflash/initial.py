"""Where a drafter's weights start, and the scale its fc reads the taps at.

Taps differ by orders of magnitude, from layer to layer and, with a few huge features, within one;
a plain random fc hears only the loudest. So each input of fc is scaled by a power of two that
brings it near one, measured on the first micro-batch. Training works on the scaled inputs; saving
folds the scale into fc's weights, which a power of two does without rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dflash.drafter import Drafter, load_weights

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.config import DrafterConfig
    from dflash.target_weights import TargetWeights
    from dflash.train_config import TrainConfig

MAX_EXPONENT = 20
"""A feature that is always zero must not get an infinite scale."""


@torch.no_grad()
def initial_drafter(config: TrainConfig, shape: DrafterConfig, target: TargetWeights) -> Drafter:
    """The same weights on every rank: they follow from the seed and the target's files."""
    torch.manual_seed(config.seed)
    drafter = Drafter(shape)
    if config.init_from:
        load_weights(drafter, Path(config.init_from))
    elif config.init == "taps":
        final = target.find("norm.weight")
        if final is not None:  # the head was made for states of this scale
            drafter.norm.weight.copy_(final)
        for layer in drafter.layers:  # each layer starts as a no-op and grows
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return drafter


def measure_scale(states: Tensor) -> Tensor:
    """[tokens, K*H] -> [K*H] powers of two that bring each feature's size near one.

    By the median: the first token of a text is a sink, a hundred times larger than all others.
    """
    magnitude = states.float().abs()
    size = torch.maximum(magnitude.median(0).values, 0.01 * magnitude.mean(0)) * 1.5
    exponent = -torch.log2(size.clamp_min(2.0**-MAX_EXPONENT)).round()
    return torch.exp2(exponent.clamp(-MAX_EXPONENT, MAX_EXPONENT))


@torch.no_grad()
def fold_scale(drafter: Drafter, scale: Tensor) -> None:
    """From weights for scaled taps to weights for taps as they are; `1 / scale` undoes it."""
    drafter.fc.weight.mul_(scale.to(drafter.fc.weight.dtype))
