"""Start of training: scaled taps fold away exactly, and a sampled head is right on average."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from dflash.drafter import Drafter
from dflash.initial import fold_scale, initial_drafter, measure_scale, pass_last_tap
from dflash.losses import LossOptions, block_loss
from dflash.sampled_head import SampledHead
from dflash.shards import Row
from dflash.target_weights import TargetWeights
from dflash.train_config import TrainConfig
from tests.support.tiny_targets import HIDDEN, save_tiny_target, tiny_drafter_config

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 60


def uneven_states() -> torch.Tensor:
    torch.manual_seed(0)
    size = torch.logspace(-3, 3, 3 * HIDDEN)
    size[7] = 0.0
    return torch.randn(50, 3 * HIDDEN) * size


def test_scaled_taps_are_all_near_one() -> None:
    states = uneven_states()
    scale = measure_scale(states)
    assert torch.equal(scale, torch.exp2(torch.log2(scale).round()))
    size = (states * scale).square().mean(0).sqrt()
    assert size[7] == 0
    assert size[size > 0].min() > 0.5
    assert size.max() < 2.5
    states[0] *= 1000  # a sink token
    assert (measure_scale(states) / scale).log2().abs().max() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_folding_is_exact_and_can_be_undone(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    drafter = Drafter(tiny_drafter_config()).to(dtype)
    states = uneven_states().to(dtype)
    scale = measure_scale(states)
    before, scaled = drafter.fc.weight.clone(), drafter.fc(states * scale.to(dtype))
    fold_scale(drafter, scale)
    torch.testing.assert_close(drafter.fc(states), scaled)
    fold_scale(drafter, 1 / scale)
    assert torch.equal(drafter.fc.weight, before)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "hybrid"])
def test_layers_start_as_the_target_s_last_ones(tmp_path: Path, kind: str) -> None:
    weights = TargetWeights(save_tiny_target(tmp_path / "target", kind))
    config = TrainConfig.from_json({"target": "t", "data": "d", "out": "o"})
    drafter = initial_drafter(config, tiny_drafter_config(kind), weights)
    depth = drafter.config.num_target_layers
    mlp = weights.get(f"layers.{depth - 1}.mlp.down_proj.weight")
    assert torch.equal(drafter.layers[-1].mlp.down_proj.weight, mlp)
    offset = 1.0 if kind == "hybrid" else 0.0  # Qwen3.5 stores norms around zero
    assert torch.equal(drafter.norm.weight, weights.get("norm.weight") + offset)
    again = initial_drafter(config, tiny_drafter_config(kind), weights)
    assert torch.equal(again.fc.weight, drafter.fc.weight)


def test_fc_starts_as_the_last_tap_at_its_own_proportions() -> None:
    drafter = Drafter(tiny_drafter_config())
    with torch.no_grad():
        drafter.fc.weight.zero_()
    states = uneven_states()
    scale = measure_scale(states)
    pass_last_tap(drafter, scale)
    last = states[:, -HIDDEN:]
    given = drafter.fc(states * scale)
    torch.testing.assert_close(given, last * scale[-HIDDEN:].median())


class FakeSet:
    """Two documents; only supervised tokens count."""

    def __len__(self) -> int:
        return 2

    def row(self, index: int) -> Row:
        ids = np.array([50, 51, 4, 4, 5, 6 + index], dtype=np.int32)
        return Row(id="", input_ids=ids, loss_mask=np.array([0, 0, 1, 1, 1, 1], dtype=np.uint8))


def sampled(size: int = 8) -> SampledHead:
    return SampledHead(FakeSet(), vocab_size=VOCAB, size=size, seed=0)  # type: ignore[arg-type]


def test_frequent_tokens_the_batch_s_own_and_some_others_take_part() -> None:
    drawn = sampled().draw(0, torch.tensor([9, 5]))
    exact = drawn.ids[drawn.correction == 0].tolist()
    assert exact == [4, 5, 6, 7, 9]
    assert len(drawn.ids) == 5 + 2
    assert drawn.ids.tolist() == sorted(drawn.ids.tolist())
    assert drawn.ids[drawn.place(torch.tensor([9, 5]))].tolist() == [9, 5]
    assert drawn.correction.max() == pytest.approx(np.log((VOCAB - 5) / 2))


def test_the_draw_follows_from_the_number() -> None:
    ids = [sampled().draw(g, torch.tensor([9])).ids.tolist() for g in (3, 3, 4)]
    assert ids[0] == ids[1] != ids[2]


def test_the_sampled_loss_is_the_full_one_on_average() -> None:
    torch.manual_seed(0)
    out, weight = torch.randn(8, 16), torch.randn(VOCAB, 16) * 0.3
    labels, slot = torch.randint(0, VOCAB, (8,)), torch.arange(4).repeat(2)
    options = LossOptions(block_size=4)

    def loss(head: Any, targets: torch.Tensor, correction: Any = None) -> float:
        sums = block_loss(out, targets, slot > 0, slot, head, options, correction=correction)
        return float(sums.loss / sums.divisor)

    full = loss(lambda h: functional.linear(h, weight), labels)
    head, found = sampled(size=40), []
    for g in range(200):
        drawn = head.draw(g, labels)
        rows = weight[drawn.ids]
        place = drawn.place(labels)
        found.append(loss(lambda h, r=rows: functional.linear(h, r), place, drawn.correction))
    assert np.mean(found) == pytest.approx(full, rel=0.03)
