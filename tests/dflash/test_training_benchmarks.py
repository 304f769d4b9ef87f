"""The benchmarks of a whole job: their arithmetic, and that they run with toy shapes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import limited, online_training
from tests.benchmarks.profiled_training import STEPS, summary

if TYPE_CHECKING:
    from pathlib import Path

CELLS = len(online_training.HEADER)
STANDS = """
import subprocess, sys, time
def waits():
    time.sleep(1000)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "below"])
waits()
"""


def test_time_without_kernels_and_with_the_exchange_alone() -> None:
    kernels = [
        (0.0, 4.0, "nvjet_sm90"), (3.0, 7.0, "ncclDevKernel_AllReduce"), (6.0, 6.5, "_keys"),
        (10.0, 12.0, "_keys"),
    ]  # fmt: skip
    first, *groups = summary(kernels).splitlines()
    # Of 12 ms: none from 7 to 10; the exchange alone from 4 to 6 and from 6.5 to 7.
    assert STEPS == 2
    assert first == "a step: 6.0 ms; no kernel ran 1.5 ms, nothing but the exchange 1.2 ms"
    assert [line.split()[0] for line in groups] == ["2.00", "2.00", "1.25"]


def test_a_split_and_the_design_of_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--tiny --gpus 2 --steps 7 --anchors 4 --splits calibration 1+1 seed"
    monkeypatch.setattr(sys, "argv", ["online_training.py", *words.split()])
    online_training.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    _, split, before, behind = [[c.strip() for c in line.split("|")[1:-1]] for line in lines]
    assert (split[0], len(split)) == ("1+1", CELLS)
    assert all("% of" in cell for cell in split[3:6]), "held against three figures"
    assert [row[0].split(", ")[-1] for row in (before, behind)] == [
        "our parts", "states sent behind the step",
    ]  # fmt: skip
    for row in (split, before, behind):
        assert float(row[2].removesuffix(" tok/s").replace(",", "")) > 0


def test_a_split_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["online_training.py", "--splits", "3:1"])
    with pytest.raises(SystemExit, match="2"):
        online_training.main()
    assert "--splits: 3:1 is none of calibration," in capsys.readouterr().err


def test_whoever_stands_still_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of a job: the one that is waited for tells less than the one that waits."""
    monkeypatch.setattr(limited, "GRACE_S", 1.0)
    program = tmp_path / "stands.py"
    program.write_text(STANDS)
    found = limited.bounded([sys.executable, str(program)], 1.0)
    assert found.problem.startswith("not finished after 1 s, in ")
    assert found.problem.endswith(" in waits")
    assert found.said.count("in waits") == 2
