"""The package starts fast: SSH is loaded by who uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_importing_remote_loads_no_ssh_and_opens_nothing():
    code = (
        "import sys, remote\n"
        "bad = {'paramiko', 'cryptography', 'textual', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'loaded {bad}' if bad else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
