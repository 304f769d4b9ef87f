"""What happened while nobody looked, in one line. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.tui import format as fmt
from state.telling import told_state

if TYPE_CHECKING:
    from datetime import datetime

    from runbook.tui.memory import Memory
    from runbook.views import View

LONG_S = 300.0
"""A shorter absence needs no report."""
NAMED = 4
_TOLD = (
    ("attention", "needs a decision"), ("failed", "failed"), ("unhealthy", "is unhealthy"),
    ("gated", "waits for a person"), ("stopped", "was stopped"), ("stale", "became stale"),
    ("skipped", "was skipped"), ("done", "done"), ("active", "began"), ("serving", "serves"),
)  # fmt: skip


def since(view: View, before: Memory, *, now: datetime) -> str:
    """What became of tasks since then; empty when it was not long, or nothing moved."""
    left = fmt.parse_time(before.seen_at)
    if left is None or (now - left).total_seconds() < LONG_S:
        return ""
    if view.snapshot.revision == before.revision:
        return ""
    moved: dict[str, list[str]] = {}
    for task in view.snapshot.tasks:
        when = fmt.parse_time(task.since)
        if not task.removed and when is not None and when > left:
            moved.setdefault(told_state(task), []).append(task.id)
    told = [_told(moved[state], word) for state, word in _TOLD if state in moved]
    if not told:
        return ""
    return f"Since you left {fmt.duration((now - left).total_seconds())} ago: {'; '.join(told)}."


def _told(names: list[str], word: str) -> str:
    if len(names) > NAMED:
        return f"{len(names)} tasks {word.removeprefix('is ').removeprefix('was ')}"
    return f"{', '.join(names)} {word}"
