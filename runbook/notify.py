"""Telling somebody who is not looking: the operator's own command gets one JSON object on stdin.

Sent on: a task failed or needs attention, a gate waits, a problem that needs a person (a rental
that ends, a budget), and at the end: everything is done, or nothing moves without somebody. Never
with log text or secrets: names, states and the reason as recorded. One message per subject and
kind in `QUIET_S`; the command has `LIMIT_S`, and its failure is told once and stops nothing.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from runbook.engine.events import Info, Problem, TaskMoved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runbook.engine.events import EngineEvent, Listener
    from runbook.views import RunResult
    from runbook.workspace import Workspace

VERSION = 1
"""Of the JSON object."""
QUIET_S = 60.0
LIMIT_S = 30.0
LEAVE_S = 5.0
"""How long the end of an engine waits for the last message to be handed over."""
KINDS = {"failed": "failed", "attention": "lost", "gated": "gate", "unhealthy": "failed"}
"""State a task moved to -> kind of message."""
LONGEST = 500


@dataclass(slots=True)
class Notifier:
    """Passes events on and hands those worth a message to the command, in a thread of its own."""

    command: Sequence[str]
    workspace: str
    listen: Listener
    _sent: dict[tuple[str, str], float] = field(default_factory=dict)
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
        if isinstance(event, TaskMoved) and event.state in KINDS:
            self.send(KINDS[event.state], event.task, event.reason)
        elif isinstance(event, Problem):
            self.send("problem", event.task or "", f"{event.text} {event.hint}".strip())

    def ended(self, result: RunResult) -> None:
        """The engine ended by itself: done, or waiting for somebody."""
        if result.outcome == "done":
            self.send("finished", "", result.reason)
        elif result.outcome != "interrupted":
            self.send("stopped", "", f"{result.outcome}: {result.reason}")

    def send(self, kind: str, task: str, reason: str) -> None:
        """Queues a message, unless the same was sent a moment ago."""
        if not self.command:
            return
        now = time.monotonic()
        if now - self._sent.get((kind, task), -QUIET_S) < QUIET_S:
            return
        self._sent[kind, task] = now
        self._queue.put(
            {
                "v": VERSION,
                "kind": kind,
                "task": task or None,
                "reason": reason[:LONGEST],
                "workspace": self.workspace,
            }
        )

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
