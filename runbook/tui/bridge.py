"""The only thread crossing: four threads with a service of their own, one queue to the screen.

The engine advances the graph; the hands carry out what a key asked for (a stop may take as long as
the slowest link); the eyes read: a locked or slow disk must not hold the keys; the scout fetches
what a place wants to know, perhaps from a host that hangs, and no fact waits behind it. All only
put facts on a queue, which the app empties ten times a second: nothing here calls into Textual, and
a closed app is no error. All are daemons, because a blocked read on a dead link must not keep the
terminal; the jobs live on their hosts.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from runbook.engine.events import EngineEvent
from runbook.errors import explain
from runbook.tui.ports import Opener, ReaderOpener, ReaderPort, ServicePort

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.views import RunResult, View

Call = Callable[[ServicePort], Any]
Then = Callable[[Any], None]
Source = Literal["engine", "hands", "eyes", "scout"]

LOOK_S = 0.1
"""How often the eyes ask whether anybody wrote."""
SLOW_S = 1.0
"""How often they look though no commit announced anything: another client's progress."""
ANSWER_STEP_S = 0.25
"""How soon whoever waits for a passphrase notices that the screen was closed."""
REST = 3.0
"""A large graph is read less often: at most a quarter of the time goes into it."""


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
    then: Then | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The graph was read anew."""

    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a screen wanted to know."""

    answer: Any
    then: Then


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """A thread met an error; it goes on, except for the engine."""

    text: str
    hint: str
    source: Source = "hands"
    otherwise: Then | None = None
    """Who waits for the answer that will not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassphraseWanted:
    """A key file is locked: a person is asked, and a thread waits for what they type."""

    path: Path
    again: bool
    """What was typed before did not open it."""
    answer: SimpleQueue[str | None]


Told = EngineEvent | RunEnded | Carried | Seen | Looked | Broke | PassphraseWanted


class Bridge:
    """Starts the threads, takes their facts home."""

    def __init__(
        self, opener: Opener, *, crash_file: Path, reader: ReaderOpener | None = None
    ) -> None:
        self._opener = opener
        self._reader: ReaderOpener = reader or opener
        self._crash_file = crash_file
        self._inbox: SimpleQueue[Told] = SimpleQueue()
        self._asked: SimpleQueue[tuple[str, Call, Then | None, Then | None] | None] = SimpleQueue()
        self._stop = threading.Event()
        self._closed = threading.Event()
        self._engine: threading.Thread | None = None
        self._hands: threading.Thread | None = None
        self._eyes: threading.Thread | None = None
        self._scout: threading.Thread | None = None
        self._wanted: dict[str, tuple[Call, Then]] = {}
        self._curious = threading.Condition()
        self._pending = 0
        self._runs, self._ends = 0, 0

    @property
    def engine_runs(self) -> bool:
        """Whether this process advances the graph; not any more once the end was told."""
        alive = self._engine is not None and self._engine.is_alive()
        return alive and self._ends < self._runs

    @property
    def busy(self) -> bool:
        """Whether something a key asked for is still being done."""
        return self._pending > 0

    def start_engine(self, *, until: str | None = None, only: Collection[str] = ()) -> bool:
        """Advance the graph in the background; False when that is already so."""
        if self.engine_runs:
            return False
        self._stop.clear()
        self._runs += 1
        self._engine = threading.Thread(
            target=self._advance, args=(until, only), name="engine", daemon=True
        )
        self._engine.start()
        return True

    def watch(self) -> None:
        """Begin to read the graph whenever somebody wrote."""
        if self._eyes is None:
            self._eyes = threading.Thread(target=self._see, name="eyes", daemon=True)
            self._scout = threading.Thread(target=self._scouting, name="scout", daemon=True)
            self._eyes.start()
            self._scout.start()

    def ask(
        self, command: str, call: Call, *, then: Then | None = None, otherwise: Then | None = None
    ) -> None:
        """Carry something out, one after the other; `then` is called on the screen's thread."""
        self._pending += 1
        if self._hands is None:
            self._hands = threading.Thread(target=self._serve, name="hands", daemon=True)
            self._hands.start()
        self._asked.put((command, call, then, otherwise))

    def look(self, name: str, call: Call, then: Then) -> None:
        """Read something off the screen's thread; of two looks of one name the newer counts.

        Nothing is read before `watch`.
        """
        with self._curious:
            self._wanted[name] = (call, then)
            self._curious.notify()

    def drain(self, most: int = 5000) -> list[Told]:
        """What was told since the last time."""
        told: list[Told] = []
        while len(told) < most:
            try:
                fact = self._inbox.get_nowait()
            except Empty:
                break
            source = fact.source if isinstance(fact, Broke) else ""
            self._pending -= isinstance(fact, Carried) or source == "hands"
            self._ends += isinstance(fact, RunEnded) or source == "engine"
            told.append(fact)
        return told

    def ask_passphrase(self, path: Path, again: bool) -> str | None:
        """Called by whoever connects, on its own thread; None when the person gives none."""
        answer: SimpleQueue[str | None] = SimpleQueue()
        self._inbox.put(PassphraseWanted(path=path, again=again, answer=answer))
        while not self._closed.is_set():
            with suppress(Empty):
                return answer.get(timeout=ANSWER_STEP_S)
        return None

    def close(self, *, seconds: float = 2.0) -> None:
        """Ask all threads to end and wait a little. What they started goes on."""
        self._stop.set()
        self._closed.set()
        self._asked.put(None)
        with self._curious:
            self._curious.notify()
        deadline = time.monotonic() + seconds
        for thread in (self._engine, self._hands, self._eyes, self._scout):
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _advance(self, until: str | None, only: Collection[str]) -> None:
        began = time.monotonic()
        try:
            service = self._opener()
            try:
                result = service.run(
                    until=until, only=only, stop_event=self._stop, listen=self._inbox.put
                )
            finally:
                service.close()
        except Exception as error:  # noqa: BLE001  the boundary of this thread
            self._inbox.put(self._broke(error, "engine"))
            return
        self._inbox.put(RunEnded(result=result, seconds=time.monotonic() - began))

    def _serve(self) -> None:
        service: ServicePort | None = None
        while (asked := self._asked.get()) is not None:
            command, call, then, otherwise = asked
            try:
                service = service or self._opener()
                answer = call(service)
            except Exception as error:  # noqa: BLE001  the boundary of this thread
                self._inbox.put(self._broke(error, "hands", otherwise))
            else:
                self._inbox.put(Carried(command=command, answer=answer, then=then))
        if service is not None:
            service.close()

    def _see(self) -> None:
        reader: ReaderPort | None = None
        look_at, rest_until = time.monotonic() + SLOW_S, 0.0
        due, said = False, ""
        while not self._closed.wait(LOOK_S):
            began = time.monotonic()
            try:
                reader = reader or self._reader()
                due = reader.changed() or due or began >= look_at
                if due and began >= rest_until:
                    self._inbox.put(Seen(view=reader.view()))
                    due, said, look_at = False, "", began + SLOW_S
                    rest_until = time.monotonic() + REST * (time.monotonic() - began)
            except Exception as error:  # noqa: BLE001  told once; what was shown stays
                broke = self._broke(error, "eyes")
                if broke.text != said:
                    self._inbox.put(broke)
                said, rest_until = broke.text, time.monotonic() + SLOW_S
        if reader is not None:
            reader.close()

    def _scouting(self) -> None:
        service: ServicePort | None = None  # opened for the first look: it loads far more
        while not self._closed.is_set():
            for call, then in self._wishes():
                try:
                    service = service or self._opener()
                    self._inbox.put(Looked(answer=call(service), then=then))
                except Exception as error:  # noqa: BLE001  the boundary of this thread
                    self._inbox.put(self._broke(error, "scout"))
        if service is not None:
            service.close()

    def _wishes(self) -> list[tuple[Call, Then]]:
        with self._curious:
            if not self._wanted and not self._closed.is_set():
                self._curious.wait()
            wishes = list(self._wanted.values())
            self._wanted.clear()
        return wishes

    def _broke(self, error: Exception, source: Source, otherwise: Then | None = None) -> Broke:
        known = explain(error)
        if known is not None:
            text, hint = known.message, known.hint
        else:
            text, hint = f"{type(error).__name__}: {error}", self.keep_traceback(error)
        return Broke(text=text, hint=hint, source=source, otherwise=otherwise)

    def keep_traceback(self, error: Exception) -> str:
        """Write the traceback of a bug to a file; says where."""
        try:
            with self._crash_file.open("a", encoding="utf-8") as file:
                file.writelines(traceback.format_exception(error))
        except OSError as full:
            return f"This is a bug; its traceback could not be written: {full}."
        return f"This is a bug; the traceback is in {self._crash_file}."
