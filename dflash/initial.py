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

from dflash.config import text_part
from dflash.drafter import Drafter, load_weights

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.config import DrafterConfig
    from dflash.random_target import RandomWeights
    from dflash.target_weights import TargetWeights
    from dflash.train_config import TrainConfig

QK_SIZE = 2.0
"""Weight of QK norms that stand in for none: logits of attention are then as sharp as usual."""
MAX_EXPONENT = 20
"""A feature that is always zero must not get an infinite scale."""


@torch.no_grad()
def initial_drafter(
    config: TrainConfig,
    shape: DrafterConfig,
    target: TargetWeights | RandomWeights,
    device: torch.device | str = "cpu",
) -> Drafter:
    """The same weights on every rank: they follow from the seed and the target's files.

    Drawn on the device: a CPU needs half a minute for a drafter of 27B.
    """
    torch.manual_seed(config.seed)
    with torch.device(device):
        drafter = Drafter(shape)
    if config.init_from:
        load_weights(drafter, Path(config.init_from))
    elif config.init == "target":
        start_from_layers(drafter, target)
    return drafter


@torch.no_grad()
def start_from_layers(drafter: Drafter, target: TargetWeights | RandomWeights) -> None:
    """The layers start as the target's last ones, the norms as those they stand in for.

    Measured on a 135M target with 64 documents: after one epoch the loss is 5.5 this way, 7.0 with
    layers that start as no-ops. What has another shape in the target stays random.
    """
    # These families store the difference of a norm's weight from one.
    kind = str(text_part(target.config).get("model_type", ""))
    offset = 1.0 if kind.startswith(("gemma", "qwen3_5", "qwen3_next")) else 0.0
    shape = drafter.config
    first = shape.num_target_layers - shape.num_layers
    names = {"norm.weight": "norm.weight"}
    names["hidden_norm.weight"] = f"layers.{shape.num_target_layers - 1}.input_layernorm.weight"
    for name in drafter.state_dict():
        if name.startswith("layers."):
            _, i, rest = name.split(".", 2)
            names[name] = f"layers.{first + int(i)}.{rest}"
    own = drafter.state_dict()
    copied = set()
    for name, source in names.items():
        found = target.find(source)
        if found is not None and found.shape == own[name].shape:
            own[name].copy_(found + offset if "norm" in name else found)
            copied.add(name)
    for number, layer in enumerate(drafter.layers):
        prefix = f"layers.{number}.self_attn."
        if prefix + "k_proj.weight" in copied and prefix + "k_norm.weight" not in copied:
            # A target without QK norms: their outputs were larger than one.
            layer.self_attn.q_norm.weight.fill_(QK_SIZE)
            layer.self_attn.k_norm.weight.fill_(QK_SIZE)


@torch.no_grad()
def pass_last_tap(drafter: Drafter, scale: Tensor) -> None:
    """fc, reading scaled taps, starts as the last tap at its own proportions plus some of all."""
    hidden = drafter.config.hidden_size
    last = scale[-hidden:].to(drafter.fc.weight.device)
    weight = drafter.fc.weight
    weight.mul_(0.5)
    weight[:, -hidden:] += torch.diag(last.median() / last).to(weight.dtype)


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
