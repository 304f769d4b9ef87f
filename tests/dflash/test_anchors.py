"""Anchors: which positions, how many, in which order, and which slots carry a label."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash.anchors import eligible_anchors, sample_anchors, slot_mask

masks = st.lists(st.integers(0, 1), min_size=2, max_size=60).map(lambda m: np.array(m, np.uint8))


def test_an_anchor_needs_its_next_token_supervised_and_may_be_near_the_end() -> None:
    mask = np.zeros(20, dtype=np.uint8)
    mask[5:9] = mask[16:20] = 1
    assert eligible_anchors(mask).tolist() == [5, 6, 7, 16, 17, 18]


@given(masks, st.integers(1, 20), st.integers(0, 5))
def test_sample_is_sorted_distinct_eligible_and_as_large_as_allowed(
    mask: np.ndarray, count: int, seed: int
) -> None:
    drawn = sample_anchors(mask, count=count, seed=seed, epoch=0, document=0)
    eligible = eligible_anchors(mask)
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert set(drawn) <= set(eligible)
    assert len(drawn) == min(count, len(eligible))


def test_the_draw_depends_on_seed_epoch_and_document_alone() -> None:
    mask = np.ones(200, dtype=np.uint8)
    key = {"count": 10, "seed": 1, "epoch": 2, "document": 3}
    first = sample_anchors(mask, **key).tolist()
    assert sample_anchors(mask, **key).tolist() == first
    for name in ("seed", "epoch", "document"):
        assert sample_anchors(mask, **(key | {name: 9})).tolist() != first


@given(masks, st.integers(2, 8))
def test_slots_count_up_to_the_first_unsupervised_one(mask: np.ndarray, size: int) -> None:
    anchors = eligible_anchors(mask)
    found = slot_mask(mask, anchors, size)
    for a, slots in zip(anchors, found, strict=True):
        assert not slots[0]
        run = 0
        while run + 1 < size and a + run + 1 < len(mask) and mask[a + run + 1]:
            run += 1
        assert slots.tolist() == [False] + [True] * run + [False] * (size - 1 - run)
