"""Packing: full micro-batches, each document once, little padding for the target."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.packing import fill, forwards, pack


def lognormal(count: int, longest: int) -> np.ndarray:
    draw = np.random.default_rng(0)
    return np.clip(np.exp(draw.normal(np.log(732), 0.9, count)), 32, longest).astype(np.int64)


def test_micro_batches_are_full() -> None:
    lengths = lognormal(20_000, 8192)
    order = np.random.default_rng(1).permutation(len(lengths))
    made = pack(order, lengths, np.ones_like(lengths), tokens=16_384, most_blocks=10**9)
    assert fill(made, lengths, 16_384) > 0.996
    rows = [[int(lengths[d]) for d in one] for one in made[:300]]
    padded = sum(len(p) * max(r[i] for i in p) for r in rows for p in forwards(r))
    assert padded < 1.02 * sum(map(sum, rows))


def test_few_documents_are_left_for_a_poor_micro_batch() -> None:
    lengths = lognormal(10_000, 4096)
    made = pack(np.arange(10_000), lengths, np.ones_like(lengths), tokens=8192, most_blocks=10**9)
    assert sum(lengths[list(one)].sum() < 7000 for one in made) <= 2


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=80),
    window=st.integers(1, 40),
)
def test_each_document_once_and_no_budget_exceeded(
    sizes: list[tuple[int, int]], window: int
) -> None:
    lengths = np.array([a for a, _ in sizes])
    blocks = np.array([min(a, b) for a, b in sizes])
    made = pack(np.arange(len(sizes)), lengths, blocks, tokens=120, most_blocks=110, window=window)
    assert sorted(d for one in made for d in one) == list(range(len(sizes)))
    for one in made:
        assert lengths[list(one)].sum() <= 120
        assert blocks[list(one)].sum() <= 110


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([2000, 2000, 1990], [[0, 1, 2]]),  # hardly any padding: one forward
        ([4000, 100], [[0], [1]]),  # padding the short one would cost 3,900 tokens
        ([100, 4000, 90, 3950], [[1, 3], [0, 2]]),
        ([20, 30, 25], [[0, 1, 2]]),
        ([5], [[0]]),
    ],
)
def test_rows_share_a_forward_when_padding_is_cheaper(
    lengths: list[int], expected: list[list[int]]
) -> None:
    assert forwards(lengths) == expected
