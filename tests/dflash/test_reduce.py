"""Gradients of several ranks, and the optimiser in slices, against one process that has it all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from dflash.drafter import Drafter
from dflash.fused_layer import side_by_side
from dflash.optim import Optimiser
from dflash.sharded import optimiser_for
from dflash.train_config import TrainConfig
from tests.support.ranks import in_ranks
from tests.support.tiny_targets import tiny_drafter_config

if TYPE_CHECKING:
    from pathlib import Path

STEPS, MICRO, RANKS = 4, 2, 2


def options(**changes: Any) -> TrainConfig:
    values = {"target": "t", "data": "d", "out": "o", "drafters": RANKS, "micro_batches": 2,
              "lr": 1e-2, "weight_decay": 0.1}  # fmt: skip
    return TrainConfig.from_json(values | changes)


def model(dtype: torch.dtype) -> Drafter:
    torch.manual_seed(0)
    return Drafter(tiny_drafter_config()).to(dtype)


def backward(drafter: Drafter, step: int, micro: int) -> None:
    """A loss whose gradient differs by step and micro-batch."""
    draw = torch.Generator().manual_seed(100 * step + micro)
    total = torch.zeros(())
    for p in drafter.parameters():
        total = total + (p.float() * torch.randn(p.shape, generator=draw)).sum()
    (total / 100 + 0.01 * (drafter.norm.weight.float() ** 2).sum()).backward()


def alone(dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    drafter = model(dtype)
    optimiser = Optimiser(drafter, options())
    for step in range(STEPS):
        for micro in range(MICRO * RANKS):
            backward(drafter, step, micro)
            optimiser.collect()
        optimiser.step(1e-2, divisor=4.0)
    return drafter.state_dict(), optimiser.state_dict()


def together(
    rank: int, dtype: torch.dtype, changes: dict[str, Any], saved: Any, steps: range
) -> Any:
    """These steps, starting from the weights and state that were saved."""
    dist.init_process_group(
        "gloo", init_method=os.environ["DFLASH_RENDEZVOUS"], rank=rank, world_size=RANKS
    )
    drafter = model(dtype)
    if saved is not None:
        drafter.load_state_dict(saved[0])
    optimiser, reducer = optimiser_for(drafter, options(**changes), dist.group.WORLD)
    assert reducer is not None
    if saved is not None:
        optimiser.load_state_dict(saved[1])
    norms = []
    for step in steps:
        for micro in range(rank, MICRO * RANKS, RANKS):
            if micro + RANKS >= MICRO * RANKS:
                reducer.expect_last()
            backward(drafter, step, micro)
            optimiser.collect()
        reducer.finish()
        norms.append(optimiser.step(1e-2, divisor=4.0).grad_norm)
    state = optimiser.state_dict()
    dist.destroy_process_group()
    return drafter.state_dict(), state, norms


def flat(state: dict[str, Any]) -> list[torch.Tensor]:
    moments = state["adamw"]["state"]
    return [*state["masters"], *(moments[i][n] for i in sorted(moments) for n in moments[i])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shard", [False, True])
def test_ranks_train_as_one(tmp_path: Path, *, shard: bool, dtype: torch.dtype) -> None:
    expected, state = alone(dtype)
    change = {"shard_optimizer": shard}
    found = in_ranks(RANKS, tmp_path, together, dtype, change, None, range(STEPS))
    wide = dtype == torch.float32
    tolerance = {"atol": 1e-5, "rtol": 1e-4} if wide else {"atol": 8e-3, "rtol": 2e-2}
    for weights, _, _ in found:
        for name, tensor in expected.items():
            torch.testing.assert_close(weights[name], tensor, **tolerance)
    assert found[0][2] == found[1][2]  # one norm, whichever rank asks
    for ours, theirs in zip(flat(found[0][1]), flat(state), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3 if wide else 2e-2)


def test_slices_and_whole_ones_resume_each_other(tmp_path: Path) -> None:
    """Two steps in slices, saved; the rest whole, in slices and in one process: all the same."""
    dtype = torch.float32
    sliced, whole = {"shard_optimizer": True}, {"shard_optimizer": False}
    half = in_ranks(RANKS, tmp_path, together, dtype, sliced, None, range(2))[0]
    ends = [
        in_ranks(RANKS, tmp_path, together, dtype, change, half[:2], range(2, STEPS))[0][0]
        for change in (sliced, whole)
    ]
    drafter = model(dtype)
    drafter.load_state_dict(half[0])
    optimiser = Optimiser(drafter, options())
    optimiser.load_state_dict(half[1])
    for step in range(2, STEPS):
        for micro in range(MICRO * RANKS):
            backward(drafter, step, micro)
            optimiser.collect()
        optimiser.step(1e-2, divisor=4.0)
    for name, tensor in drafter.state_dict().items():
        for other in ends:
            torch.testing.assert_close(other[name], tensor, atol=1e-5, rtol=1e-4)


def test_bf16_on_the_wire_is_close(tmp_path: Path) -> None:
    expected, _ = alone(torch.float32)
    for shard in (False, True):
        change = {"reduce_dtype": "bfloat16", "shard_optimizer": shard}
        found = in_ranks(RANKS, tmp_path, together, torch.float32, change, None, range(STEPS))
        weights = found[1][0]
        far = max(float((weights[name] - expected[name]).abs().max()) for name in expected)
        assert 0 < far < 5e-2  # steps of 1e-2, four of them


def poisoned(rank: int) -> Any:
    dist.init_process_group(
        "gloo", init_method=os.environ["DFLASH_RENDEZVOUS"], rank=rank, world_size=RANKS
    )
    drafter = model(torch.float32)
    optimiser, reducer = optimiser_for(drafter, options(shard_optimizer=True), dist.group.WORLD)
    assert reducer is not None
    before = drafter.norm.weight.clone()
    reducer.expect_last()
    if rank:
        drafter.hidden_norm.weight.register_hook(lambda grad: grad * float("nan"))
    backward(drafter, 0, rank)
    reducer.finish()
    skipped = optimiser.step(1e-2, divisor=1.0).skipped
    dist.destroy_process_group()
    return skipped, torch.equal(before, drafter.norm.weight)


def test_a_bad_gradient_of_one_rank_is_named_and_skipped_by_all(tmp_path: Path) -> None:
    assert in_ranks(RANKS, tmp_path, poisoned) == [("hidden_norm.weight", True)] * RANKS


def together_in_memory(rank: int) -> list[bool]:
    """Whether one product can do for both matrices of each layer, once the optimiser is there."""
    dist.init_process_group(
        "gloo", init_method=os.environ["DFLASH_RENDEZVOUS"], rank=rank, world_size=RANKS
    )
    drafter = model(torch.bfloat16)
    optimiser_for(drafter, options(shard_optimizer=True), dist.group.WORLD)
    found = []
    for layer in drafter.layers:
        gate, up = layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight
        both = side_by_side(gate.detach(), up.detach())
        found.append(both.data_ptr() == gate.data_ptr() and torch.equal(both[len(gate) :], up))
    dist.destroy_process_group()
    return found


def test_slices_leave_gate_and_up_side_by_side(tmp_path: Path) -> None:
    for found in in_ranks(RANKS, tmp_path, together_in_memory):
        assert found
        assert all(found)
