"""A graph of 10,000 tasks: each look well under a second, and no more than its share of it."""

from __future__ import annotations

from tests.benchmarks.graph_size import table

UNDER_S = {"status": 1.0, "status --json": 1.0, "next": 1.0, "PROGRESS.md": 1.5}


def test_ten_thousand_tasks_cost_ten_times_as_much_as_a_thousand() -> None:
    found = table((1_000, 10_000), share_done=50, without="load the file")
    for name, row in found.items():
        # Caches and the collector make it more than ten; a look at every task for every task, 100.
        assert row[10_000] < 30 * row[1_000], name
    for name, most in UNDER_S.items():
        assert found[name][10_000] < most, (name, found[name])
    assert found["one task done"][10_000] < 5 * found["one task done"][1_000], "no longer local"
