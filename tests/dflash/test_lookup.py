"""Prompt lookup proposes what followed the newest earlier match."""

from __future__ import annotations

import pytest

from dflash.lookup import NgramIndex


def test_continues_the_newest_match():
    index = NgramIndex(longest=2, shortest=2)
    assert index.propose([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], limit=3) == [4, 9, 1]


def test_a_longer_match_wins():
    index = NgramIndex(longest=3, shortest=2)
    assert index.propose([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], limit=2) == [3, 8]


def test_no_match_no_drafts():
    assert NgramIndex().propose([1, 2, 3, 4, 5], limit=4) == []
    assert NgramIndex().propose([1], limit=4) == []


def test_a_match_at_the_end_is_not_itself():
    # [5, 5] ends at 2 and 3; the last one is the question, not an answer.
    assert NgramIndex(longest=2, shortest=2).propose([5, 5, 5], limit=3) == [5]


def test_grows_with_the_text_as_a_fresh_index_would():
    text = [1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 4, 4, 1, 2]
    grown = NgramIndex()
    for end in range(1, len(text) + 1):
        fresh = NgramIndex().propose(text[:end], limit=5)
        assert grown.propose(text[:end], limit=5) == fresh


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="n-gram sizes"):
        NgramIndex(longest=1, shortest=2)
