"""Busy, idle, wedged, silent: what is concluded from looks at a server, one after the other."""

from __future__ import annotations

from typing import Any

from runbook.serving.health import Patience, Watched, judge, load_text, question

PATIENCE = Patience(every_s=10, probe_every_s=30, deadline_s=120, strikes=3)
HEALTHY = {"asked": "health", "status": 200}
REFUSED = {"asked": "health", "status": 503}
HANGS = {"asked": "generate", "found": "timed out"}


def watch(*looks: tuple[float, dict[str, Any]]) -> list[str]:
    """The condition after each look at a time."""
    watched, told = Watched(), []
    for now, found in looks:
        watched, condition, _ = judge(watched, found, PATIENCE, now)
        told.append(condition)
    return told


def load(moved: float | None = 5.0, probe: Any = None, **found: Any) -> dict[str, Any]:
    row = {"running": 2, "queued": 9, **found}
    if moved is not None:
        row |= {"moved": moved, "tokens": moved}
    return row | ({"probe": probe} if probe else {})


def test_one_503_or_two_are_none() -> None:
    looks = [(t, load(probe=REFUSED)) for t in (30.0, 60.0)]
    assert watch((0, load()), *looks, (90, load(probe=HEALTHY))) == ["well", "doubted", "doubted",
                                                                     "well"]  # fmt: skip


def test_three_in_a_row_with_nothing_moving_are_a_wedge() -> None:
    looks = [(t, load(probe=REFUSED)) for t in (30.0, 60.0, 90.0)]
    assert watch((0, load()), *looks)[-1] == "wedged"


def test_any_movement_wipes_strikes_out() -> None:
    looks = [(t, load(probe=REFUSED)) for t in (30.0, 60.0)]
    later = [(t, load(moved=6, probe=REFUSED)) for t in (90.0, 120.0, 150.0)]
    assert watch((0, load()), *looks, *later) == ["well", "doubted", "doubted", "well", "doubted",
                                                  "doubted"]  # fmt: skip


def test_health_is_believed_only_so_long_while_requests_run_and_nothing_moves() -> None:
    watched, _, _ = judge(Watched(), load(), PATIENCE, 0)
    kinds = []
    for now in range(30, 180, 30):
        asked = question(watched, PATIENCE, now)
        assert asked is not None
        kinds.append(asked["probe"])
        watched, _, _ = judge(watched, load(probe=HEALTHY), PATIENCE, now)
    assert kinds == ["health", "health", "health", "generate", "generate"]


def test_an_idle_server_is_never_asked_to_generate() -> None:
    watched, _, _ = judge(Watched(), load(running=0), PATIENCE, 0)
    for now in range(30, 900, 30):
        asked = question(watched, PATIENCE, now)
        assert asked is not None
        assert asked["probe"] == "health"
        watched, condition, _ = judge(watched, load(running=0, probe=HEALTHY), PATIENCE, now)
        assert condition == "well"


def test_unhealthy_stays_so_until_work_gets_done() -> None:
    wedged = [(t, load(probe=HANGS)) for t in (130.0, 160.0, 190.0)]
    assert watch((0, load()), *wedged, (220, load(probe=HEALTHY)))[-1] == "wedged"
    made = {"asked": "generate", "status": 200, "ids": 4}
    assert watch((0, load()), *wedged, (220, load(probe=made)))[-1] == "well"
    assert watch((0, load()), *wedged, (220, load(moved=7)))[-1] == "well"


def test_without_metrics_only_probes_tell_and_that_is_said() -> None:
    bare = {"no_metrics": 404, "probe": {"asked": "health", "found": "timed out"}}
    watched, told = Watched(), []
    for now in (30.0, 60.0, 90.0):
        watched, condition, why = judge(watched, bare, PATIENCE, now)
        told.append(condition)
    assert told == ["doubted", "doubted", "wedged"]
    assert "no /metrics that would tell whether it is busy" in why


def test_the_rate_is_measured_between_two_looks() -> None:
    watched, _, _ = judge(Watched(), load(moved=100), PATIENCE, 0)
    watched, _, _ = judge(watched, load(moved=400), PATIENCE, 10)
    assert load_text(load(kv_used=0.5), watched) == {
        "kind": "load", "message": "2 running, 9 queued",
        "metrics": {"tok/s": 30.0, "KV used": 0.5},
    }  # fmt: skip
