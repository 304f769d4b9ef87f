"""`quarantine.jsonl` beside the completions: prompts without an answer, and why.

What a server refused for good, such as a prompt that is too long, is not asked again by later runs.
What failed for passing reasons is: those rows are gone when the next run begins.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dflash.completions import line_of
from dflash.files import write_aside

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from dflash.prompts import Prompt

FILE = "quarantine.jsonl"
REASONS_KEPT = 5


class Quarantine:
    """One writer; whoever holds the folder's lock."""

    def __init__(self, folder: Path, *, release: bool = False) -> None:
        self.path = folder / FILE
        rows = [] if release else [row for row in _rows(self.path) if row["refused"]]
        self._rows = {row["id"]: row for row in rows}
        self._write()

    @property
    def ids(self) -> Collection[str]:
        return self._rows.keys()

    def held(self, digests: Mapping[str, int]) -> dict[str, int]:
        """Of the prompts that there are, those not asked again; a prompt that was mended is."""
        mended = {
            name
            for name, digest in digests.items()
            if name in self._rows and f"{digest:016x}" != self._rows[name]["prompt_hash"]
        }
        if mended:
            self._rows = {name: row for name, row in self._rows.items() if name not in mended}
            self._write()
        return {name: digest for name, digest in digests.items() if name in self._rows}

    def add(self, prompt: Prompt, *, kind: str, refused: bool, reasons: Sequence[str]) -> None:
        row = {
            "id": prompt.id,
            "prompt_hash": f"{prompt.digest:016x}",
            "kind": kind,
            "refused": refused,
            "attempts": len(reasons),
            "reasons": list(reasons[-REASONS_KEPT:]),
        }
        self._rows[prompt.id] = row
        with self.path.open("ab") as handle:
            handle.write(line_of(row))

    def _write(self) -> None:
        if self._rows or self.path.exists():
            with write_aside(self.path) as handle:
                handle.writelines(map(line_of, self._rows.values()))


def _rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows; a torn last line is one more prompt that is asked again."""
    found = []
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            row = None
        if isinstance(row, dict) and {"id", "refused", "prompt_hash"} <= row.keys():
            found.append(row)
    return found
