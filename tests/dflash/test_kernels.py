"""Each Triton kernel computes what its plain twin does: by Triton's interpreter, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parents[1] / "support" / "kernel_checks.py"
NAMES = ("attention", "pointwise", "cross_entropy", "adamw", "delta_rule")


@pytest.mark.parametrize("name", NAMES)
def test_kernels_equal_their_plain_twins(name: str) -> None:
    pytest.importorskip("triton")
    # The interpreter is chosen when Triton is imported: a process of its own.
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kernel_checks", name],
        cwd=CHECKS.parents[2], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "equal" in done.stdout
