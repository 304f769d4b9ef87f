"""Where a drafter's weights start: a sane projection of the taps, or another drafter's weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dflash.drafter import Drafter, load_weights

if TYPE_CHECKING:
    from dflash.config import DrafterConfig
    from dflash.target_weights import TargetWeights
    from dflash.train_config import TrainConfig


@torch.no_grad()
def initial_drafter(config: TrainConfig, shape: DrafterConfig, target: TargetWeights) -> Drafter:
    """The same weights on every rank: they follow from the seed and the target's files."""
    torch.manual_seed(config.seed)
    drafter = Drafter(shape)
    if config.init_from:
        load_weights(drafter, Path(config.init_from))
        return drafter
    if config.init in ("taps", "target"):
        start_from_taps(drafter)
        final = target.find("norm.weight")
        if final is not None:
            drafter.norm.weight.copy_(final)
    if config.init == "target":
        start_from_layers(drafter, target)
    return drafter


def start_from_taps(drafter: Drafter) -> None:
    """fc passes the last tap through; the others start small."""
    hidden = drafter.config.hidden_size
    weight = drafter.fc.weight
    weight.mul_(0.1)
    weight[:, -hidden:] += torch.eye(hidden)


def start_from_layers(drafter: Drafter, target: TargetWeights) -> None:
    """The layers start as the target's last ones, where shapes agree."""
    depth, count = drafter.config.num_target_layers, drafter.config.num_layers
    for i, layer in enumerate(drafter.layers):
        for name, parameter in layer.named_parameters():
            found = target.find(f"layers.{depth - count + i}.{name}")
            if found is not None and found.shape == parameter.shape:
                parameter.copy_(found)
