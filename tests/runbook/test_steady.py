"""The rate of a task in full swing, from a recorded run and from made ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runbook.steady import moments, steady_s

RECORDED = Path(__file__).parents[1] / "assets/progress/generate-200-prompts.jsonl"
ROWS, TRUE_RATE = 200, 16 / 4.0
"""16 answers at a time, each in 4 s on average."""


def test_a_recorded_run_shows_its_rate_without_ramp_and_tail() -> None:
    lines = RECORDED.read_bytes().splitlines()
    found = steady_s(lines)
    assert found is not None
    seen = moments(lines)
    whole = seen[-1].at - seen[0].at
    assert ROWS / found == pytest.approx(TRUE_RATE, rel=0.03)
    assert ROWS / whole < 0.93 * TRUE_RATE, "by all of its time it seems slower"


def event(at: float, done: float, *, kind: str = "step", unit: str = "rows", **metrics: int) -> str:
    return json.dumps({"v": 1, "kind": kind, "t": at, "done": done, "unit": unit,
                       "metrics": metrics})  # fmt: skip


def test_ramp_and_tail_are_taken_apart() -> None:
    """Ten places, an answer in 10 s: one row a second in full swing, from 30 s on."""
    lines = [event(t, 0, running=t // 3) for t in range(0, 30, 3)]
    lines += [event(t, max(0, t - 40), running=10) for t in range(30, 240, 2)]
    lines += [event(240 + 5 * n, 200 + n, running=1) for n in range(10)]
    assert steady_s(lines) == pytest.approx(209, rel=0.02)
    assert moments(lines)[-1].at == 285, "and took longer in all"


def test_a_task_without_places_is_timed_from_first_to_last_count() -> None:
    lines = [event(100 + t, 5 * t, unit="steps") for t in range(20)]
    lines += [event(500, 95, kind="done", unit="steps")]
    assert steady_s(lines) == pytest.approx(19), "saving at the end is not its work"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"torn", "{}", "[1]", '{"v": 1, "kind": "step", "t": null, "done": 1}'],
        [event(t, t) for t in range(3)],
        [event(t, 0, running=4) for t in range(50)],
        [event(t, 0 if t < 40 else t, running=4 if t < 40 else 1) for t in range(50)],
        [event(1, t, running=4) for t in range(50)],
    ],
    ids=["none", "torn", "short", "nothing-done", "never-full-with-answers", "no-time"],
)
def test_where_no_rate_can_be_seen_none_is_claimed(lines: list[str | bytes]) -> None:
    assert steady_s(lines) is None


@pytest.mark.parametrize(
    "odd",
    [
        '{"v": 1, "kind": "step", "t": 19, "done": 95, "metrics": [1], "unit": "rows"}',
        '{"v": 1, "kind": "step", "t": 20, "done": NaN, "unit": "rows"}',
        '{"v": 1, "kind": "step", "t": 20, "done": 1%s, "unit": "rows"}' % ("0" * 400),
        "[" * 100_000,
    ],
    ids=["list", "nan", "larger-than-any-float", "deep"],
)
def test_a_line_that_a_host_made_up_is_passed_over(odd: str) -> None:
    lines = [event(t, 5 * t) for t in range(20)]
    assert steady_s([*lines, odd]) == steady_s(lines)


def test_bytes_that_go_to_a_store_at_the_end_are_not_its_work() -> None:
    lines = [event(t, t) for t in range(20)] + [event(30, 10**9, unit="bytes")]
    assert steady_s(lines) == pytest.approx(19)
