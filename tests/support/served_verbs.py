"""A running `verb_server`, for who kills verbs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def served_verbs() -> Iterator[subprocess.Popen[bytes]]:
    """It has loaded what verbs import; at the end it goes, and waits for its children."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.verb_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        cwd=Path(__file__).parents[2],
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        yield server
    finally:
        server.stdin.close()
        server.wait(timeout=60)
        server.stdout.close()
