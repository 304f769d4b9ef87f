"""Telling somebody who is not looking: the operator's own command gets one JSON object on stdin.

Sent on: a task failed or needs attention, a gate waits, a person stopped a task, a rental ends,
another problem needs a person, and at the end: everything is done, or nothing moves without
somebody. Never log text: names, states and the reason as recorded, without the secrets that this
process knows. One message per subject and kind in `QUIET_S`, and `MOST` of all in `WINDOW_S`; the
command has `LIMIT_S`, and its failure is told once and stops nothing.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from runbook.engine.events import Info, Problem, RentalEnding, TaskMoved
from runbook.secrets import KNOWN
from state.telling import STOPPED, told_move

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runbook.engine.events import EngineEvent, Listener
    from runbook.views import RunResult
    from runbook.workspace import Workspace

VERSION = 1
"""Of the JSON object."""
QUIET_S = 60.0
MOST, WINDOW_S = 30, 600.0
"""So many messages in so many seconds; the next one says how many were held back."""
LIMIT_S = 30.0
LEAVE_S = 5.0
"""How long the end of an engine waits for the last message to be handed over."""
KINDS = {
    "failed": "failed", "attention": "lost", "gated": "gate", STOPPED: "task_stopped",
    "unhealthy": "failed",
}  # fmt: skip
"""What people call the state that a task moved to -> kind of message."""
LONGEST = 500


@dataclass(slots=True)
class Notifier:
    """Passes events on and hands those worth a message to the command, in a thread of its own."""

    command: Sequence[str]
    workspace: str
    listen: Listener
    clock: Callable[[], float] = time.monotonic
    _sent: dict[tuple[str, str], float] = field(default_factory=dict)
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=MOST))
    _held_back: int = 0
    _queue: SimpleQueue[dict[str, Any] | None] = field(default_factory=SimpleQueue)
    _thread: threading.Thread | None = None
    _failed: bool = False

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._deliver, name="notify", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(LEAVE_S)

    def __call__(self, event: EngineEvent) -> None:
        """A listener."""
        self.listen(event)
        if isinstance(event, TaskMoved):
            if kind := KINDS.get(told_move(event.state, event.reason)):
                self.send(kind, event.task, event.reason)
        elif isinstance(event, RentalEnding):
            self.send("rental", event.task or "", f"{event.text} {event.hint}", host=event.role)
        elif isinstance(event, Problem):
            self.send("problem", event.task or "", f"{event.text} {event.hint}".strip())

    def ended(self, result: RunResult) -> None:
        """The engine ended by itself: done, or waiting for somebody."""
        if result.outcome == "done":
            self.send("finished", "", result.reason)
        elif result.outcome != "interrupted":
            self.send("stopped", "", f"{result.outcome}: {result.reason}")

    def send(self, kind: str, task: str, reason: str, *, host: str = "") -> None:
        """Queues a message, unless the same was sent a moment ago, or too many were."""
        if not self.command:
            return
        now, subject = self.clock(), (kind, host or task)
        if now - self._sent.get(subject, -QUIET_S) < QUIET_S:
            return
        # How it ended is always told.
        full = len(self._times) == MOST and now - self._times[0] < WINDOW_S
        if full and kind not in ("finished", "stopped"):
            self._held_back += 1
            return
        self._sent[subject] = now
        self._times.append(now)
        message = {
            "v": VERSION,
            "kind": kind,
            "task": task or None,
            "host": host or None,
            "reason": KNOWN.text(reason)[:LONGEST],
            "workspace": self.workspace,
            "held_back": self._held_back,
        }
        self._held_back = 0
        self._queue.put(message)

    def _deliver(self) -> None:
        while (message := self._queue.get()) is not None:
            problem = self._run(message)
            if problem and not self._failed:
                self._failed = True
                self.listen(
                    Info(text=f"the notify command failed ({problem}); messages may be lost")
                )

    def _run(self, message: dict[str, Any]) -> str:
        try:
            ended = subprocess.run(
                list(self.command),
                input=json.dumps(message).encode() + b"\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if ended.returncode == 0:
            return ""
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        return f"exit {ended.returncode}" + (f": {said[-1][:LONGEST]}" if said else "")


def notifying(command: Sequence[str], workspace: Workspace, listen: Listener) -> Notifier:
    """A notifier for one engine; without a command it only passes events on."""
    return Notifier(command, str(workspace.root), listen)
