"""Layers with a written-out gradient equal the plain ones; intervals say what the rule says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from dflash.attention import dense_mask
from dflash.errors import DflashError
from dflash.fused_layer import lay_side_by_side, side_by_side
from dflash.spans import spans_of
from tests.dflash.test_attention import KINDS as MASKS
from tests.dflash.test_attention import MIXED, layout
from tests.dflash.test_drafter import ANCHORS, HIDDEN, KINDS, B, drafter_of, inputs, one_document

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.drafter import Drafter

LONG = layout(
    [60, 37, 5],
    [(0, 3), (0, 4), (0, 20), (0, 41), (0, 55), (0, 58), (1, 2), (1, 20), (-2, 0), (2, 1), (2, 3)],
    padding=7,
)
SOME = torch.arange(44)[torch.arange(44) % 4 > 0]


@pytest.mark.parametrize(("window", "causal"), [*MASKS, (30, True)])
def test_intervals_are_the_rule(window: int | None, causal: bool) -> None:
    for lay in (MIXED, LONG):
        spans = spans_of(lay, window=window, causal=causal)
        seen = torch.cat([spans.context.mask(), spans.block.mask()], 1)
        assert torch.equal(seen, dense_mask(lay, window=window, causal=causal))


@pytest.mark.parametrize("rows", [None, SOME])
@pytest.mark.parametrize(("window", "causal"), [(None, False), (6, True), (30, False)])
@pytest.mark.parametrize("size", [4, 16])
def test_tile_tables_cover_what_is_seen_and_mask_what_is_not(
    window: int | None, causal: bool, rows: Tensor | None, size: int
) -> None:
    spans = spans_of(LONG, window=window, causal=causal, rows=rows)
    for name, run in (("context", spans.context), ("block", spans.block)):
        mask = run.mask()
        tables = (spans.by_rows(name, size, 8).tolist(), mask, size, 8)
        flipped = (spans.by_keys(name, size, 8).tolist(), mask.t(), 8, size)
        for table, seen, high, wide in (tables, flipped):
            for tile, (first, whole, until, last) in enumerate(table):
                part = seen[tile * high : (tile + 1) * high]
                assert first <= whole <= until <= last
                assert part[:, : first * wide].sum() == 0
                assert part[:, last * wide :].sum() == 0
                assert part[:, whole * wide : until * wide].all()


def gradients(drafter: Drafter, out: Tensor) -> dict[str, Tensor]:
    weight = torch.linspace(0, 1, out.numel()).view(out.shape)
    (out.square() * weight).sum().backward()
    return {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("partly", [False, True])
def test_fused_layers_equal_plain_ones(kind: str, repeated: bool, partly: bool) -> None:
    rows = torch.arange(len(ANCHORS) * B)
    rows = rows[rows % B > 0] if partly else None
    results = []
    for backend in ("sdpa", "fused"):
        drafter, (embeds, states) = drafter_of(kind), inputs()
        if repeated:
            blocks = embeds.view(-1, B, HIDDEN).clone()
            blocks[:, 1:] = blocks[0, 1]
            embeds = blocks.view(1, -1, HIDDEN)
        out = drafter(embeds, states, one_document(), backend, rows=rows, repeated=repeated)
        results.append((out.detach(), gradients(drafter, out)))
    (plain, plain_grads), (fused, fused_grads) = results
    torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-4)
    assert fused_grads.keys() == plain_grads.keys()
    for name, grad in plain_grads.items():
        assert (fused_grads[name] - grad).norm() <= 1e-5 * grad.norm(), name


def test_a_fused_gradient_is_given_once() -> None:
    drafter, (embeds, states) = drafter_of("mixed"), inputs()
    loss = drafter(embeds, states, one_document(), "fused").sum()
    loss.backward(retain_graph=True)
    with pytest.raises(DflashError, match="twice"):
        loss.backward()


def test_matrices_laid_side_by_side_stay_parameters() -> None:
    first, second = (torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2))
    both = torch.cat([first, second]).detach()
    assert side_by_side(first, second).data_ptr() != first.data_ptr()  # a copy so far
    lay_side_by_side(first, second)
    assert side_by_side(first, second).data_ptr() == first.data_ptr()
    with torch.no_grad():
        second += 1
        both[3:] += 1
    assert torch.equal(side_by_side(first, second), both)


def test_memory_that_others_share_is_not_moved() -> None:
    flat = torch.randn(24)
    first, second = (torch.nn.Parameter(flat[i : i + 12].view(3, 4)) for i in (12, 0))
    lay_side_by_side(first, second)
    flat.zero_()
    assert first.abs().sum() == 0, "still a view of the flat buffer"
    assert torch.equal(side_by_side(first, second), torch.zeros(6, 4))
