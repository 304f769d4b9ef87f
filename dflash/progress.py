"""The JSON lines a running command writes for whoever follows it, and its results file.

Standard library only. One line per event, appended by one write, so that a reader never sees half
a line unless the process was killed inside that write; the next writer then starts a new line.
Progress is a courtesy: a full disk here must never stop hours of work, so failures are swallowed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

from dflash.files import write_json

VERSION = 1
PATH_VARIABLE = "RUNBOOK_PROGRESS"
OUT_VARIABLE = "RUNBOOK_OUT"

Kind = Literal["phase", "step", "done"]


class Progress:
    """Appends events to a file; without a file it is silent, with `echo` it also tells a human."""

    def __init__(self, path: Path | str | None = None, *, echo: TextIO | None = None) -> None:
        found = path if path is not None else os.environ.get(PATH_VARIABLE)
        self.path = Path(found) if found else None
        self._echo = echo

    def emit(
        self,
        kind: Kind,
        *,
        done: float | None = None,
        total: float | None = None,
        unit: str = "",
        message: str = "",
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        event = {
            "v": VERSION,
            "kind": kind,
            "done": done,
            "total": total,
            "unit": unit,
            "message": message,
            "metrics": _plain(dict(metrics or {})),
            "t": time.time(),
        }
        if self.path is not None:
            # ValueError: a metric that is no JSON value, which must not cost the run either.
            with contextlib.suppress(OSError, ValueError, TypeError):
                _append_line(self.path, json.dumps(event, ensure_ascii=False, allow_nan=False))
        if self._echo is not None:
            with contextlib.suppress(OSError, ValueError):  # the terminal may have gone away
                self._echo.write(human_line(event) + "\n")
                self._echo.flush()


def human_line(event: Mapping[str, Any]) -> str:
    """`12/60 rows  412 tok/s  message` for logs and terminals."""
    parts = []
    if event.get("done") is not None:
        total = event.get("total")
        count = f"{event['done']:,}" + (f"/{total:,}" if total is not None else "")
        parts.append(f"{count} {event.get('unit') or ''}".rstrip())
    for name, value in (event.get("metrics") or {}).items():
        if isinstance(value, float):
            parts.append(f"{name} {value:,.4g}")
        elif isinstance(value, int | str):
            parts.append(f"{name} {value}")
    if event.get("message"):
        parts.append(str(event["message"]))
    return "  ".join(parts)


def parse_line(line: str | bytes) -> dict[str, Any] | None:
    """One event, or None for a torn, foreign or newer line: a follower skips those."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("v") != VERSION:
        return None
    return event


def write_out(result: Mapping[str, Any]) -> Path | None:
    """The command's results for later tasks, whole or not at all; nowhere to write is fine."""
    found = os.environ.get(OUT_VARIABLE)
    if not found:
        return None
    path = Path(found)
    write_json(path, _plain(dict(result)))
    return path


def _append_line(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        # Without it another writer's line could be seen half-way and be taken for a torn one.
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = os.fstat(handle).st_size
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        os.write(handle, (b"\n" if torn else b"") + text.encode() + b"\n")
    finally:
        os.close(handle)


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity; a reader gets null there rather than an unreadable line."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
