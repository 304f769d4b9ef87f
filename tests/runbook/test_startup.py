"""A look starts as fast as small tools do: compared with one, on the same machine at once."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.plan import load_text
from runbook.service import Service
from tests.support.workspaces import HEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
TASK = "  a: {title: A, phase: one, step: shell, with: {argv: [x]}}\n"


def processor_seconds(*words: str) -> float:
    """Of a whole Python process, which hardly depend on what else runs here."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def quickest(words: Sequence[str]) -> float:
    return min(processor_seconds(*words) for _ in range(3))


def test_status_costs_less_than_one_and_a_half_of_sqlite_utils_saying_its_version(
    tmp_path: Path,
) -> None:
    runbook = load_text(HEAD + TASK, path="runbook.yaml", params={})
    Service.create(tmp_path, runbook, actor="tester").close()
    status = quickest(["-m", "runbook", "-w", str(tmp_path), "status"])
    assert status < 1.5 * quickest(["-m", "sqlite_utils", "--version"])
