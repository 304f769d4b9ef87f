"""The curve and the pace of a training run, read from its progress lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from runbook.tui.metrics import MOST_POINTS, Metrics
from tests.support.fake_service import progress_lines

if TYPE_CHECKING:
    from pathlib import Path


def test_newest_line_curve_and_pace(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(progress_lines(620))
    metrics = Metrics(path)
    assert metrics.poll()
    assert metrics.latest is not None
    assert metrics.latest["done"] == 620
    assert len(metrics.loss) == 620
    assert metrics.eta() == 380 * 6


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b'nonsense\n[1]\n{"metrics": 3}\n{"metrics": {"loss": "x"}}\n{"done": 1, "me')
    metrics = Metrics(path)
    metrics.poll()
    assert metrics.loss == []
    with path.open("ab") as file:
        file.write(b'trics": {"loss": 2.5}}\n')
    metrics.poll()
    assert metrics.loss == [2.5]


def test_a_long_run_stays_the_size_of_a_screen(tmp_path: Path) -> None:
    path = tmp_path / "p"
    count = 5 * MOST_POINTS
    path.write_text("".join(json.dumps({"metrics": {"loss": n}}) + "\n" for n in range(count)))
    metrics = Metrics(path)
    while metrics.poll():
        pass
    assert len(metrics.loss) < MOST_POINTS
    assert metrics.loss == sorted(metrics.loss)
    assert metrics.loss[-1] > count * 0.99


def test_a_file_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(progress_lines(50))
    metrics = Metrics(path)
    metrics.poll()
    path.write_bytes(progress_lines(3))
    metrics.poll()
    assert len(metrics.loss) == 3


def test_another_phase_starts_its_own_pace(tmp_path: Path) -> None:
    path = tmp_path / "p"
    rows = [(1, 900, 0), (2, 990, 100), (3, 1, 200), (4, 11, 210)]
    path.write_text(
        "".join(json.dumps({"done": done, "total": 1000, "t": t}) + "\n" for _, done, t in rows)
    )
    metrics = Metrics(path)
    metrics.poll()
    assert metrics.eta() == 989


def test_no_file_is_no_error(tmp_path: Path) -> None:
    assert not Metrics(None).poll()
    assert not Metrics(tmp_path / "none").poll()
