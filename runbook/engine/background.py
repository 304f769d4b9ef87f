"""What takes its time on a host, beside the loop: checks that read whole models, uploads.

A worker is a thread. It decides nothing and writes no verdict: what it found goes back to the
engine's thread, which alone moves tasks. A worker that dies with its engine leaves an attempt that
is being looked at, and the next engine looks again. Long ones have connections of their own; brief
ones (all that a start asks of its host) use the engine's.
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event as StopEvent

    from runbook.engine.events import EngineEvent
    from runbook.engine.world import World

PER_HOST = 4
AT_ONCE_S = 0.25
"""Most looks are over by then: waiting so long saves a round of the loop."""
SLICE_S = 0.05


@dataclass(slots=True)
class Work:
    """One thing that is under way."""

    role: str
    done: Callable[[Any], None]
    """Called with what was found, in the engine's thread."""
    failed: Callable[[Exception], None]
    keep: bool
    """An engine that leaves waits for it: it acts, and a second one must not act beside it."""
    aside: bool = False
    """Nobody waits for what it finds: a look at a server that serves goes on for ever."""
    brief: bool = False
    """Uses the connection of the engine, which does not wait for it when it begins."""
    ended: threading.Event = field(default_factory=threading.Event)
    found: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Background:
    """The workers of one engine."""

    _work: dict[str, Work] = field(default_factory=dict)
    _events: queue.SimpleQueue[EngineEvent] = field(default_factory=queue.SimpleQueue)
    _wake: threading.Event = field(default_factory=threading.Event)

    def __len__(self) -> int:
        """How many things are under way that something may come of."""
        return sum(not work.aside for work in self._work.values())

    def busy(self, key: str) -> bool:
        """Whether this is under way, or ended and not yet taken over."""
        return key in self._work

    def begin(
        self,
        world: World,
        key: str,
        role: str,
        look: Callable[[World], Any],
        *,
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
        keep: bool = False,
        aside: bool = False,
        brief: bool = False,
    ) -> None:
        """Starts a look, unless it runs already or its host has enough to do: then ask again.

        What is brief and to be kept follows from what was decided, and is never put off.
        """
        on_host = sum(work.role == role for work in self._work.values())
        if key in self._work or (on_host >= PER_HOST and not (brief and keep)):
            return
        work = Work(role=role, done=done, failed=failed, keep=keep, aside=aside, brief=brief)
        self._work[key] = work
        hosts = world.hosts if brief else replace(world.hosts, _open={}, _breakers={})
        own = replace(world, hosts=hosts, listen=self._events.put)
        name = f"look-{key}"
        threading.Thread(target=self._run, args=(work, own, look), name=name, daemon=True).start()
        if not brief and work.ended.wait(AT_ONCE_S):
            self.collect(world)

    def settle(self, world: World, seconds: float) -> None:
        """Takes over what brief work finds, and what follows from it, for so long at most."""
        until = time.monotonic() + seconds
        while any(work.brief for work in self._work.values()) and time.monotonic() < until:
            self._wake.wait(SLICE_S)
            self.collect(world)

    def _run(self, work: Work, own: World, look: Callable[[World], Any]) -> None:
        try:
            work.found = look(own)
        except Exception as error:  # noqa: BLE001 (raised again in the engine's thread)
            work.error = error
        finally:
            if not work.brief:
                own.hosts.close()
            work.ended.set()
            self._wake.set()

    def collect(self, world: World) -> None:
        """Takes over what ended: the only place where a worker's findings reach the graph."""
        self._wake.clear()
        while not self._events.empty():
            world.emit(self._events.get())
        for key, work in list(self._work.items()):
            # What follows from one may begin another, and take over what ended meanwhile.
            if work.ended.is_set() and self._work.pop(key, None) is work:
                if work.error is None:
                    work.done(work.found)
                else:
                    work.failed(work.error)

    def wait(self) -> None:
        """Waits until something ended, or for a moment."""
        self._wake.wait(SLICE_S)

    def pause(self, stop_event: StopEvent, seconds: float) -> None:
        """Waits, but not longer than until something ended or somebody wants us to leave."""
        until = time.monotonic() + seconds
        while not stop_event.is_set() and (left := until - time.monotonic()) > 0:
            if self._wake.wait(min(SLICE_S, left)):
                return

    def leave(self, world: World) -> None:
        """Waits for what acts; what only looks is left behind and looked at again later."""
        for work in list(self._work.values()):
            if work.keep:
                work.ended.wait()
        self.collect(world)
        self._work.clear()
