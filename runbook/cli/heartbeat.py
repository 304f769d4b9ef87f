"""A line about what still runs, while the engine in this terminal has nothing to tell of it.

A client of its own that only reads, so that the engine waits for nothing here.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Self

from runbook import report
from runbook.cli.follow import progress_text
from runbook.errors import RunbookError
from runbook.reader import Reader
from state import StateError, TaskState
from state.transitions import RUNNING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from runbook.cli.follow import Follow
    from state import Attempt, Task

EVERY_S = 60.0
FEW = 4
"""Lines at a time: of many tasks each is told less often."""
TAIL = 4096
LONGEST = 100
ACTIVE = RUNNING - {TaskState.SERVING}


class Heartbeat:
    """Speaks through `follow` of what that has not spoken of for a while."""

    def __init__(self, workspace: Path, follow: Follow, *, every_s: float = EVERY_S) -> None:
        self._workspace, self._follow, self._every_s = workspace, follow, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beats, daemon=True)
        self._first: dict[str, tuple[float, float]] = {}
        """Attempt -> when its progress was first seen here, and how far it was."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _beats(self) -> None:
        while not self._stop.wait(self._every_s):
            self.beat()

    def beat(self) -> None:
        """Tells of the tasks that run and were silent, the longest silent first."""
        try:
            with Reader.open(self._workspace) as reader:
                view = reader.view()
                quiet = self._follow.quiet_since
                tasks = [
                    task
                    for task in view.snapshot.tasks
                    if task.state in ACTIVE and quiet(task.id) >= self._every_s * 0.9
                ]
                for task in sorted(tasks, key=lambda task: -quiet(task.id))[:FEW]:
                    attempt = view.snapshot.latest_attempt(task.id)
                    live = view.live.get(task.id)
                    if attempt is None:
                        continue
                    known = live is not None and live.attempt == attempt.id
                    progress = live.progress if live is not None and known else None
                    said = self._pace(attempt, progress) if progress else _last_line(reader, task)
                    self._follow.still(task.id, f"{task.state}{_for_how_long(attempt)}{said}")
        except (RunbookError, StateError, OSError):
            return  # a courtesy: whoever advances the graph says what is wrong

    def _pace(self, attempt: Attempt, progress: Mapping[str, Any]) -> str:
        said = f": {progress_text(progress)}".rstrip(": ")
        now, done, total = (progress.get(key) for key in ("t", "done", "total"))
        if not all(isinstance(value, int | float) for value in (now, done, total)):
            return said
        assert now is not None
        assert done is not None
        assert total is not None
        since, from_ = self._first.setdefault(attempt.id, (now, done))
        if now <= since or done <= from_ or total <= done:
            return said
        left = (total - done) * (now - since) / (done - from_)
        return f"{said}  about {report.seconds(left)} left" if isfinite(left) else said


def _for_how_long(attempt: Attempt) -> str:
    begun = datetime.fromisoformat(attempt.started_at or attempt.created_at)
    return f" for {report.seconds((datetime.now(UTC) - begun).total_seconds())}"


def _last_line(reader: Reader, task: Task) -> str:
    """The end of what it wrote, and how long ago; from the copy here."""
    paths = [path for stream in ("out", "err") if (path := reader.log_path(task.id, stream))]
    written = [path for path in paths if path.stat().st_size]
    if not written:
        return ", without a word"
    newest = max(written, key=lambda path: path.stat().st_mtime)
    with newest.open("rb") as file:
        file.seek(max(0, newest.stat().st_size - TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "").rpartition("\r")[2]
    age = max(0.0, time.time() - newest.stat().st_mtime)
    return f": {report.clean(last.strip())[:LONGEST]} ({report.seconds(age)} ago)"
