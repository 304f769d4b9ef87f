"""Which stream of a task a log pane shows, and what its title says."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from runbook.tui import format as fmt
from state.model import AttemptState
from state.transitions import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runbook.tui.bridge import Bridge
    from runbook.tui.describe import Looks
    from runbook.tui.widgets.log_view import LogView
    from runbook.verbs.logs import Copied
    from runbook.views import View
    from state.model import Task

ASK_AGAIN_S = 1.0
FETCH_AGAIN_S, SILENT_AGAIN_S, FETCH_S = 2.0, 15.0, 5.0
"""Pause after a host's answer and after its silence; how long one look at it may last."""


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


class Fetching:
    """Output that nobody copies is fetched from its host, a little after each answer.

    The bridge's scout waits for the host, nobody else; each host is asked at its own pace.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._next: dict[str, float] = {}
        self._problems: dict[str, str] = {}

    def look(self, view: View, task: Task) -> None:
        """Asks, when it is time and nobody who advances the graph does."""
        now, role, name = time.monotonic(), task.role or "", task.id
        if now < self._next.get(role, now) or not self._is_due(view, task):
            return
        self._next[role] = now + SILENT_AGAIN_S
        self._bridge.look(
            f"log {role}",
            lambda service: service.copy_logs(name, within_s=FETCH_S),
            partial(self._answered, role),
        )

    def problem(self, view: View, task: Task) -> str:
        """Why the copy may be old; empty when it is not."""
        return self._problems.get(task.role or "", "") if self._is_due(view, task) else ""

    def _is_due(self, view: View, task: Task) -> bool:
        return not self._bridge.engine_runs and is_uncopied(view, task)

    def _answered(self, role: str, copied: Copied) -> None:
        self._problems[role] = fmt.clean(copied.problem)
        if not copied.problem:
            self._next[role] = time.monotonic() + FETCH_AGAIN_S


def is_uncopied(view: View, task: Task) -> bool:
    """Whether a job may write and nobody copies it."""
    attempt = view.snapshot.latest_attempt(task.id)
    return (
        view.engine is None
        and attempt is not None
        and attempt.state not in TERMINAL
        and attempt.detail.get("job") is not None
    )


def nothing_here(view: View, task: Task, attempt: str = "", *, problem: str = "") -> str:
    """What stands in the place of an empty stream, of the newest attempt if none is named."""
    if problem:
        return f"Not fetched: {problem}"
    attempts = view.snapshot.attempts_of(task.id)
    which = next((one for one in attempts if one.id == attempt), attempts[-1] if attempts else None)
    if which is None:
        return "No attempt has written here"
    if which.state in (AttemptState.VERIFIED, AttemptState.CHECK_FAILED):
        return "It wrote nothing here"
    return "Nothing of it is here" if which.state in TERMINAL else "No output yet"


def title_of(view: LogView, stream: str, looks: Looks, *, problem: str = "") -> Text:
    """`Log (out) · 1,204 lines · following`; the problem is why the copy may be old."""
    title = Text.assemble("Log (", (stream, looks.inks.text), ")")
    lines = view.file.line_count
    if lines:
        title.append(
            f" {looks.glyphs.dot} {lines:,} line{'' if lines == 1 else 's'}", looks.inks.muted
        )
        if problem:
            title.append(f" {looks.glyphs.dot} an old copy: {problem}", looks.inks.warn)
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
