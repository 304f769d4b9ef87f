"""Which stream of a task a log pane shows, and what its title says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.text import Text

from runbook.tui import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runbook.tui.describe import Looks
    from runbook.tui.widgets.log_view import LogView
    from runbook.views import View

ASK_AGAIN_S = 1.0


class Streams:
    """Where the streams of an attempt are: in the workspace, whatever its host does.

    A found path is kept for good; one that is not there yet is looked for again after a second.
    """

    def __init__(self, place: Callable[[str, str], Path]) -> None:
        self._place = place
        self._known: dict[tuple[str, str], Path] = {}
        self._missed: dict[tuple[str, str], float] = {}

    def path(self, view: View, task: str, stream: str, *, attempt: str = "") -> Path | None:
        """The local copy of one stream, of the newest attempt if none is named; or None."""
        if not attempt:
            newest = view.snapshot.latest_attempt(task)
            if newest is None:
                return None
            attempt = newest.id
        key = (attempt, stream)
        known, now = self._known.get(key), time.monotonic()
        if known is not None or now - self._missed.get(key, -9.0) < ASK_AGAIN_S:
            return known
        found = self._place(attempt, stream)
        if found.exists():
            self._known[key] = found
            return found
        self._missed[key] = now
        return None

    def choose(
        self, view: View, task: str, wanted: str | None, *, attempt: str = ""
    ) -> tuple[str, Path | None]:
        """The wanted stream; with no wish, the errors only when the output is empty."""
        if wanted is not None:
            return wanted, self.path(view, task, wanted, attempt=attempt)
        out = self.path(view, task, "out", attempt=attempt)
        if not _size(out):
            err = self.path(view, task, "err", attempt=attempt)
            if _size(err):
                return "err", err
        return "out", out


def title_of(view: LogView, stream: str, looks: Looks) -> Text:
    """`Log  out · 1,204 lines · following`."""
    title = Text.assemble("Log ", (stream, looks.inks.text))
    lines = view.file.line_count
    if lines:
        title.append(
            f" {looks.glyphs.dot} {lines:,} line{'' if lines == 1 else 's'}", looks.inks.muted
        )
        state = "following" if view.follow else "f follows"
        title.append(f" {looks.glyphs.dot} {state}", looks.inks.muted)
        if not view.file.complete:
            title.append(f" {looks.glyphs.dot} reading {fmt.size(view.file.size)}", looks.inks.warn)
    return title


def _size(path: Path | None) -> int:
    try:
        return path.stat().st_size if path is not None else 0
    except OSError:
        return 0
