"""Finished work of an evaluation that has not ended: JSON lines that survive any kill.

Standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, Self

from dflash.errors import DflashError

if TYPE_CHECKING:
    from pathlib import Path


class Partial:
    """The finished prompts of a run that has not ended: one JSON line each, after one header line.

    A tail torn by a kill is cut. Lines of another request are dropped: their numbers are not these.
    """

    def __init__(self, path: Path, digest: str) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        self._digest = digest

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise DflashError(
                f"another dflash eval is writing {self.path}", "Wait for it, or use another --out."
            ) from error
        self._read()
        return self

    def _read(self) -> None:
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        header = _line(lines[0]) if lines else None
        if header is None or header.get("request") != self._digest:
            self._file.truncate(0)
            self._append({"request": self._digest})
            return
        good = len(lines[0])
        for line in lines[1:]:
            record = _line(line)
            if record is None:
                break
            self.records[record["id"]] = record
            good += len(line)
        self._file.truncate(good)

    def add(self, record: dict[str, Any]) -> None:
        self._append(record)
        self.records[record["id"]] = record

    def _append(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _line(line: bytes) -> dict[str, Any] | None:
    """A whole JSON object line, or None."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
