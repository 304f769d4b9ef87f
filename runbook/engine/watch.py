"""The engine kept awake: when nothing moves it waits for what others commit, and goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runbook.engine.events import Info, Problem, TaskMoved
from runbook.engine.runner import POLL_S
from state.transitions import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event as StopEvent

    from runbook.engine.events import EngineEvent, Listener
    from runbook.engine.runner import Engine
    from runbook.views import RunResult

LOOK_S = 0.5
"""Pause between two looks at whether somebody committed something; a look costs microseconds."""
REFUSED_S = 30.0
"""When a task that could not be started is tried again without anybody having done anything."""


@dataclass(slots=True)
class Once:
    """Passes events on, but not the same problem of a task again until the task moves."""

    listen: Listener
    _said: dict[str, set[Problem]] = field(default_factory=dict)

    def __call__(self, event: EngineEvent) -> None:
        """Passes the event on, unless it only repeats."""
        if isinstance(event, TaskMoved):
            self._said.pop(event.task, None)
        if isinstance(event, Problem) and event.task is not None:
            said = self._said.setdefault(event.task, set())
            if event in said:
                return
            said.add(event)
        self.listen(event)


@dataclass(slots=True)
class Watch:
    """Advances the graph until it is told to leave, or until all is done if that was asked."""

    engine: Engine
    changed: Callable[[], bool]
    """Whether another client committed something since the last call."""
    moved: Callable[[], None]
    """Called after every round that changed the graph."""
    rests: Callable[[], None]
    """Called when nothing moves for the moment."""
    until_done: bool = False
    _told: str = ""
    _cleared: float = 0.0

    def run(self, stop_event: StopEvent) -> RunResult:
        """Blocks."""
        store = self.engine.world.store
        self._cleared = time.monotonic()
        pause, seen = POLL_S[0], -1
        while not stop_event.is_set():
            self._try_again()
            idle = self.engine.round()
            revision = store.revision()
            if revision != seen:
                self.moved()
            pause = POLL_S[0] if revision != seen else min(pause * 1.5, POLL_S[1])
            seen = revision
            if not idle:
                self.engine.world.background.pause(stop_event, pause)
                continue
            result = self.engine.result()
            if self.until_done and result.outcome == "done":
                return result
            self.rests()
            self._tell(result)
            self._rest(stop_event)
        return self.engine.leave()

    def _tell(self, result: RunResult) -> None:
        """Says once what it waits for."""
        if result.reason != self._told:
            self._told = result.reason
            what = "new work" if result.outcome == "done" else "you, or a change"
            self.engine.world.emit(Info(text=f"waiting for {what}: {result.reason}"))

    def _rest(self, stop_event: StopEvent) -> None:
        """Waits until somebody commits something, or until it is time to look by oneself."""
        world = self.engine.world
        runs = any(task.state in RUNNING for task in world.store.snapshot().tasks)
        until = time.monotonic() + (POLL_S[1] if runs else REFUSED_S)
        while not stop_event.wait(LOOK_S) and time.monotonic() < until:
            if self._try_again():
                return

    def _try_again(self) -> bool:
        """Forgets refusals once somebody did something, or after a while."""
        changed = self.changed()
        if changed or time.monotonic() - self._cleared >= REFUSED_S:
            self._cleared = time.monotonic()
            self.engine.world.refused.clear()
        return changed
