"""The benchmark beside other trainers: one that hangs or fails costs its own row, not the table."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import drafter_step
from tests.benchmarks.limited import bounded

if TYPE_CHECKING:
    import pytest

HANGS = """
import subprocess, sys
from tests.benchmarks.limited import watched
watched(0.3)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(worker.pid, flush=True)
def compiles():
    return sum(range(10**15))  # never gives the interpreter back
compiles()
"""
FAILS = "print('a row'); raise SystemExit('no such card')"


def test_what_hangs_is_told_with_its_place_and_leaves_nothing() -> None:
    found = bounded([sys.executable, "-c", HANGS], 0.3)
    assert found.problem == "not finished after 0 s, in <string>, line 8 in compiles"
    worker = Path(f"/proc/{int(found.output)}/stat")
    deadline = time.monotonic() + 60
    while worker.exists() and worker.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "its worker goes on"
        time.sleep(0.01)


def test_what_fails_says_why() -> None:
    found = bounded([sys.executable, "-c", FAILS], 100)
    assert (found.output, found.problem) == ("a row\n", "failed: no such card")
    assert bounded([sys.executable, "-c", "print(3)"], 100).problem == ""


def test_the_table_comes_whatever_becomes_of_a_peer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--tiny --anchors 2 --steps 1 --peers SpecForge --peer-limit 0.01"
    monkeypatch.setattr(sys, "argv", ["drafter_step.py", *words.split()])
    drafter_step.main()
    said = capsys.readouterr()
    _, table = said.out.split("\n\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["dflash auto", "2"], ["SpecForge", "2"]]
    assert rows[1][2].endswith(" ms")
    assert rows[2][2].startswith("not finished after 0 s")
    assert "most recent call first" in said.err
