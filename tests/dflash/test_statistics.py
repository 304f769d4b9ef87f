"""Acceptance arithmetic on rounds written by hand, and a bootstrap that knows what it knows."""

from __future__ import annotations

import pytest

from dflash.statistics import (
    Round,
    acceptance_length,
    histogram,
    macro,
    micro,
    paired_bootstrap,
    paired_differences,
    slots,
)


def rounds(*triples):
    return [Round(proposed=p, accepted=a, produced=n) for p, a, n in triples]


SHORT = rounds((3, 3, 4))
LONG = rounds((3, 0, 1), (3, 1, 2), (3, 0, 1), (3, 0, 1))


def test_macro_and_micro_differ():
    assert acceptance_length(SHORT) == 4
    assert acceptance_length(LONG) == 1.25
    assert macro([SHORT, LONG, []]) == (4 + 1.25) / 2
    assert micro([SHORT, LONG, []]) == 9 / 5


def test_no_rounds_is_no_number():
    assert acceptance_length([]) is None
    assert macro([[], []]) is None
    assert micro([]) is None


def test_slots_are_conditional_on_the_slots_before():
    found = {s.slot: (s.tried, s.accepted) for s in slots([SHORT, LONG])}
    assert found == {1: (5, 2), 2: (2, 1), 3: (1, 1)}


def test_slots_past_an_end_token_were_not_tried():
    # Three drafts held but the second was the end token: two tokens produced.
    found = {s.slot: (s.tried, s.accepted) for s in slots([rounds((3, 3, 2))])}
    assert found == {1: (1, 1), 2: (1, 1)}


def test_histogram():
    assert histogram([SHORT, LONG]) == {"1": 3, "2": 1, "4": 1}


def test_a_round_that_cannot_be_is_refused():
    with pytest.raises(AssertionError):
        Round(proposed=2, accepted=3, produced=1)


def test_bootstrap_is_seeded_and_brackets_the_mean():
    values = [0.1, 0.5, 0.2, 0.9, -0.1, 0.4]
    first = paired_bootstrap(values, seed=3, resamples=2000)
    assert first == paired_bootstrap(values, seed=3, resamples=2000)
    assert first != paired_bootstrap(values, seed=4, resamples=2000)
    assert first.low < first.mean < first.high
    assert first.mean == pytest.approx(sum(values) / 6)


def test_bootstrap_of_a_constant_is_a_point_and_of_nothing_an_error():
    point = paired_bootstrap([0.25] * 8, seed=0, resamples=100)
    assert (point.low, point.mean, point.high) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError, match="at least one pair"):
        paired_bootstrap([], seed=0)


def test_bootstrap_covers_about_as_often_as_it_says():
    import numpy as np

    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        sample = rng.normal(0.3, 1.0, size=30)
        found = paired_bootstrap(sample.tolist(), seed=trial, resamples=500)
        covered += found.low <= 0.3 <= found.high
    assert 0.87 <= covered / 200 <= 0.99


def test_pairs_need_rounds_on_both_sides():
    left = {"a": SHORT, "b": LONG, "c": []}
    right = {"a": LONG, "b": LONG, "c": LONG, "d": SHORT}
    assert paired_differences(left, right) == [4 - 1.25, 0.0]
