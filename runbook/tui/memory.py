"""Where a person is, per workspace: a small file that may be lost at any time.

It is kept while they work and not only when they leave: a killed screen comes back to its place.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered."""

    task: str = ""
    """Where the cursor was, when a person had moved it."""
    place: str = ""
    subject: str = ""
    """The task that the place was about."""
    theme: str = ""
    welcomed: bool = False
    seen_at: str = ""
    """When they last looked, as UTC ISO time."""
    revision: int = 0
    """What they had seen by then."""
    toggled: tuple[str, ...] = ()
    """Families that were folded or unfolded."""


class Keeper:
    """Reads once, and writes only what changed. Without a file nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.kept = Memory(welcomed=True) if path is None else _read(path)

    def keep(self, memory: Memory) -> None:
        """Write it down; a disk that cannot is no reason to complain."""
        if self._path is None or replace(memory, seen_at=self.kept.seen_at) == self.kept:
            return
        self.kept = memory
        aside = self._path.with_suffix(".partial")
        with suppress(OSError):
            aside.write_text(json.dumps(asdict(memory)), encoding="utf-8")
            aside.replace(self._path)


def _read(path: Path) -> Memory:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = {one.name: found[one.name] for one in fields(Memory) if one.name in found}
        memory = Memory(**{**known, "toggled": tuple(known.get("toggled", ()))})
    except (OSError, ValueError, TypeError):
        return Memory()
    return memory if _fits(memory) else Memory()


def _fits(memory: Memory) -> bool:
    """Whether each field is of its kind: an older or a damaged file is no memory."""
    return all(
        isinstance(getattr(memory, one.name), type(getattr(Memory(), one.name)))
        for one in fields(Memory)
    )
