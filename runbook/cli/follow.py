"""Engine events as lines for a terminal without a UI, a pipe or a CI log."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runbook import report
from runbook.engine.events import Info, Problem, Progressed, TaskMoved
from runbook.reasons import WAITS_FOR_PERSON
from state.telling import told_move

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from runbook.engine.events import EngineEvent

QUIET_S = 10.0
"""Least time between two progress lines of one task."""


@dataclass(slots=True)
class Follow:
    """Prints one line per event, thinned where a job reports more often than a person reads."""

    asked: dict[str, str] = field(default_factory=dict)
    """Task -> the question to a person that it was last told to wait with."""
    _said: dict[str, float] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def __call__(self, event: EngineEvent) -> None:
        """Prints the event if it is worth a line."""
        match event:
            case TaskMoved():
                self._moved(event)
            case Progressed():
                self._progressed(event)
            case Info(text=text):
                report.line(f"{_clock()}  {report.clean(text)}")
            case Problem(text=text, hint=hint):
                report.line(f"{_clock()}  ! {report.clean(text)}")
                if hint:
                    report.line(f"{' ' * 10}  {report.clean(hint)}")
            case _:
                pass

    def quiet_since(self, task: str) -> float:
        """Seconds since a line told of the task, or since this began."""
        last = max(self._said.get(task, 0.0), self._told.get(task, 0.0)) or self._began
        return time.monotonic() - last

    def still(self, task: str, text: str) -> None:
        """That it goes on, when nothing else is told of it."""
        self._said[task] = time.monotonic()
        report.line(f"{_clock()}  {task:<14}   {text}")

    def _moved(self, event: TaskMoved) -> None:
        self._told[event.task] = time.monotonic()
        took = ""
        if event.seconds is not None and event.state in ("done", "failed", "serving", "attention"):
            took = f" after {report.seconds(event.seconds)}"
        why = f": {report.clean(event.reason)}" if event.reason else ""
        if WAITS_FOR_PERSON in event.reason:
            self.asked[event.task] = event.reason
        state = told_move(event.state, event.reason)
        word = report.painted(report.state_word(state), state)
        report.line(f"{_clock()}  {event.task:<14} {word}{took}{why}")

    def _progressed(self, event: Progressed) -> None:
        now = time.monotonic()
        if now - self._said.get(event.task, -QUIET_S) < QUIET_S:
            return
        self._said[event.task] = now
        report.line(f"{_clock()}  {event.task:<14}   {progress_text(event.progress)}")


def progress_text(progress: Mapping[str, Any]) -> str:
    """A progress line in a few words: how far, what, and a few numbers."""
    parts = []
    done, total = progress.get("done"), progress.get("total")
    if isinstance(done, int | float) and isinstance(total, int | float) and total:
        unit = str(progress.get("unit") or "")
        if unit == "bytes":
            parts.append(f"{report.size(done)} of {report.size(total)}")
        else:
            parts.append(f"{done:g}/{total:g} {unit}".rstrip())
    if progress.get("message"):
        parts.append(report.clean(str(progress["message"])))
    metrics = progress.get("metrics")
    if isinstance(metrics, dict):
        numbers = [(k, v) for k, v in metrics.items() if isinstance(v, int | float)]
        parts += [f"{report.clean(key)} {value:.4g}" for key, value in numbers[:5]]
    return "  ".join(parts)


def _clock() -> str:
    return time.strftime("%H:%M:%S")
