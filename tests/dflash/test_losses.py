"""The chunked loss equals the plain one, weights are the published ones, counts are honest."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from dflash.losses import LossOptions, block_loss, decay_weights, dpace_weights, logits_of

N, B, H, V = 5, 4, 16, 30


def problem(seed: int = 0) -> tuple:
    torch.manual_seed(seed)
    out = torch.randn(N * B, H, requires_grad=True)
    labels = torch.randint(0, V, (N * B,))
    slot = torch.arange(B).repeat(N)
    supervised = (slot > 0) & (torch.rand(N * B) > 0.3)
    head = torch.nn.Linear(H, V, bias=False).requires_grad_(requires_grad=False)
    return out, labels, supervised, slot, head


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_chunks_give_the_plain_loss_and_gradient(chunk: int, softcap: float) -> None:
    out, labels, supervised, slot, head = problem()
    options = LossOptions(
        block_size=B, gamma=2.0, chunk_rows=chunk, softcap=softcap, output_multiplier=1.5
    )
    sums = block_loss(out, labels, supervised, slot, head, options)
    (sums.loss / 3).backward()
    chunked, out.grad = out.grad, None
    logits = logits_of(out, head, options)
    each = functional.cross_entropy(logits, labels, reduction="none")
    weights = decay_weights(slot, 2.0) * supervised
    plain = (weights * each).sum()
    (plain / 3).backward()
    torch.testing.assert_close(sums.loss, plain)
    torch.testing.assert_close(chunked, out.grad)
    assert float(sums.divisor) == pytest.approx(float(weights.sum()))


def test_micro_batches_add_up_to_one_batch() -> None:
    out, labels, supervised, slot, head = problem()
    options = LossOptions(block_size=B)
    whole = block_loss(out, labels, supervised, slot, head, options).totals()
    parts = [
        block_loss(out[s], labels[s], supervised[s], slot[s], head, options).totals()
        for s in (slice(0, 2 * B), slice(2 * B, N * B))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole)


def test_decay_starts_at_one_for_the_first_draft() -> None:
    weights = decay_weights(torch.arange(4), 4.0)
    assert weights.tolist() == pytest.approx([0, 1, math.exp(-0.25), math.exp(-0.5)])


def test_dpace_weighs_by_what_depends_on_a_slot() -> None:
    ce = torch.tensor([[0.0, 0.0, 0.0]])
    supervised = torch.ones_like(ce).bool()
    assert dpace_weights(ce, supervised, 0.5).tolist() == [[3.0, 2.0, 1.0]]
    hard = torch.tensor([[100.0, 0.0, 0.0]])  # a sure miss halves everything after it
    assert dpace_weights(hard, supervised, 0.5).tolist() == [[1.5, 1.0, 0.5]]
    masked = torch.tensor([[True, True, False]])
    assert dpace_weights(ce, masked, 0.5).tolist() == [[2.0, 1.0, 0.0]]


@pytest.mark.parametrize("kind", ["ce", "dpace"])
def test_nothing_supervised_is_zero_not_nan(kind: str) -> None:
    out, labels, supervised, slot, head = problem()
    none = torch.zeros_like(supervised)
    sums = block_loss(out, labels, none, slot, head, LossOptions(block_size=B, kind=kind))
    sums.loss.backward()
    assert sums.loss.item() == 0
    assert out.grad.abs().max() == 0


def test_acceptance_counts_the_leading_run_only() -> None:
    head = torch.nn.Identity()  # logits are the rows themselves
    labels = torch.tensor([9, 1, 2, 3, 9, 1, 2, 3])
    guesses = torch.tensor([0, 1, 0, 3, 0, 1, 2, 3])  # second block right, first fails at slot 2
    out = 10 * functional.one_hot(guesses, V).float()
    slot = torch.arange(B).repeat(2)
    sums = block_loss(out, labels, slot > 0, slot, head, LossOptions(block_size=B))
    assert float(sums.accepted) == 1 + 3
    assert float(sums.blocks) == 2
    assert sums.slot_right.tolist() == [0, 2, 1, 2]
    assert sums.slot_seen.tolist() == [0, 2, 2, 2]
