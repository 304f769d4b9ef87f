"""The only thread crossing: two threads with a service of their own, one queue back to the screen.

The engine thread advances the graph; the hands thread carries out what a key asked for (a stop may
take as long as the slowest link). Both only put facts on a queue, which the app empties ten times
a second: nothing here calls into Textual, and a closed app is no error. Both are daemons, because
a blocked read on a dead link must not keep the terminal; the jobs live on their hosts.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from runbook.engine.events import EngineEvent
from runbook.errors import explain
from runbook.tui.ports import Opener, ServicePort

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.views import RunResult

Call = Callable[[ServicePort], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The engine thread came to an end."""

    result: RunResult
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a key asked for was carried out."""

    command: str
    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """The engine, or what a key asked for, ended in an error."""

    text: str
    hint: str
    engine: bool = False


Told = EngineEvent | RunEnded | Carried | Broke


class Bridge:
    """Starts the threads, takes their facts home."""

    def __init__(self, opener: Opener, *, crash_file: Path) -> None:
        self._opener = opener
        self._crash_file = crash_file
        self._inbox: SimpleQueue[Told] = SimpleQueue()
        self._asked: SimpleQueue[tuple[str, Call] | None] = SimpleQueue()
        self._stop = threading.Event()
        self._engine: threading.Thread | None = None
        self._hands: threading.Thread | None = None
        self._pending = 0

    @property
    def engine_runs(self) -> bool:
        """Whether this process advances the graph."""
        return self._engine is not None and self._engine.is_alive()

    @property
    def busy(self) -> bool:
        """Whether something a key asked for is still being done."""
        return self._pending > 0

    def start_engine(self) -> bool:
        """Advance the graph in the background; False when that is already so."""
        if self.engine_runs:
            return False
        self._stop.clear()
        self._engine = threading.Thread(target=self._advance, name="engine", daemon=True)
        self._engine.start()
        return True

    def ask(self, command: str, call: Call) -> None:
        """Carry something out, one after the other."""
        self._pending += 1
        if self._hands is None:
            self._hands = threading.Thread(target=self._serve, name="hands", daemon=True)
            self._hands.start()
        self._asked.put((command, call))

    def drain(self, most: int = 5000) -> list[Told]:
        """What was told since the last time."""
        told: list[Told] = []
        while len(told) < most:
            try:
                fact = self._inbox.get_nowait()
            except Empty:
                break
            if isinstance(fact, Carried) or (isinstance(fact, Broke) and not fact.engine):
                self._pending -= 1
            told.append(fact)
        return told

    def close(self, *, seconds: float = 2.0) -> None:
        """Ask both threads to end and wait a little. What they started goes on."""
        self._stop.set()
        self._asked.put(None)
        deadline = time.monotonic() + seconds
        for thread in (self._engine, self._hands):
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _advance(self) -> None:
        began = time.monotonic()
        try:
            service = self._opener()
            try:
                result = service.run(stop_event=self._stop, listen=self._inbox.put)
            finally:
                service.close()
        except Exception as error:  # noqa: BLE001  the boundary of this thread
            self._inbox.put(self._broke(error, engine=True))
            return
        self._inbox.put(RunEnded(result=result, seconds=time.monotonic() - began))

    def _serve(self) -> None:
        service: ServicePort | None = None
        while (asked := self._asked.get()) is not None:
            command, call = asked
            try:
                service = service or self._opener()
                answer = call(service)
            except Exception as error:  # noqa: BLE001  the boundary of this thread
                self._inbox.put(self._broke(error))
            else:
                self._inbox.put(Carried(command=command, answer=answer))
        if service is not None:
            service.close()

    def _broke(self, error: Exception, *, engine: bool = False) -> Broke:
        known = explain(error)
        if known is not None:
            return Broke(text=known.message, hint=known.hint, engine=engine)
        hint = self.keep_traceback(error)
        return Broke(text=f"{type(error).__name__}: {error}", hint=hint, engine=engine)

    def keep_traceback(self, error: Exception) -> str:
        """Write the traceback of a bug to a file; says where."""
        try:
            with self._crash_file.open("a", encoding="utf-8") as file:
                file.writelines(traceback.format_exception(error))
        except OSError as full:
            return f"This is a bug; its traceback could not be written: {full}."
        return f"This is a bug; the traceback is in {self._crash_file}."
