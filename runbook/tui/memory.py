"""Where a person left off, per workspace: a small file that may be lost at any time."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered."""

    task: str = ""
    """Where the cursor was, when a person had moved it."""
    theme: str = ""
    welcomed: bool = False


def recall(path: Path | None) -> Memory:
    """What was kept, or nothing."""
    if path is None:
        return Memory(welcomed=True)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Memory(
            task=str(found.get("task", "")),
            theme=str(found.get("theme", "")),
            welcomed=bool(found.get("welcomed")),
        )
    except (OSError, ValueError, AttributeError):
        return Memory()


def remember(path: Path | None, memory: Memory) -> None:
    """Keep it; a disk that cannot is no reason to complain."""
    if path is None:
        return
    aside = path.with_suffix(".partial")
    with suppress(OSError):
        aside.write_text(json.dumps(asdict(memory)), encoding="utf-8")
        aside.replace(path)
