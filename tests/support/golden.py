"""Texts that are promised to the byte, each in a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def check_golden(path: Path, text: str) -> None:
    """The bytes are the promise; RUNBOOK_GOLDEN=write renews them."""
    if os.environ.get("RUNBOOK_GOLDEN") == "write":
        path.write_bytes(text.encode())
    assert path.read_bytes() == text.encode()
