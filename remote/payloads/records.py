"""What the payloads of a host share: refusals, progress lines, records written whole.

Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Mapping, Optional

if TYPE_CHECKING:
    from pathlib import Path

PARTIAL = ".partial"


class Refused(Exception):
    """A reason why there is no result, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def emit(
    kind: str, message: str, done: Optional[int] = None, total: Optional[int] = None, *,
    unit: str = "bytes", metrics: Optional[Mapping[str, float]] = None,
) -> None:  # fmt: skip
    """One progress line; phases also on stdout, which is the job's log."""
    if kind != "step":
        print(message, flush=True)
    path = os.environ.get("RUNBOOK_PROGRESS")
    if not path:
        return
    line = {
        "v": 1, "kind": kind, "done": done, "total": total, "unit": unit,
        "message": message, "metrics": dict(metrics or {}), "t": time.time(),
    }  # fmt: skip
    with open(path, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def sync_folder(folder: Path) -> None:
    """Makes a rename in the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Aside, fsync, rename: a reader sees the old file or the whole new one."""
    aside = path.with_name(path.name + PARTIAL)
    with open(aside, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)
