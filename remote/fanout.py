"""Many hosts asked at once; one that is silent keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote.host import Host
    from remote.model import Identity, JobStatus

PATIENCE_S = 5.0
AFTER_THE_FIRST_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one host said of its jobs, and which boot of it said so."""

    host: Host
    statuses: Mapping[str, JobStatus]
    identity: Identity | None
    found: Any = None
    """What else was fetched with it."""


Look = Callable[["Host", "Mapping[str, JobStatus]"], Any]
"""Asks a host for what its answer made one want, in the thread that waits for that host."""


class Fanout:
    """Polls of many hosts, one thread each, at most one poll under way per name."""

    def __init__(
        self, *, patience_s: float = PATIENCE_S, after_the_first_s: float = AFTER_THE_FIRST_S
    ) -> None:
        self._patience_s = patience_s
        self._after_the_first_s = after_the_first_s
        self._asked: dict[str, Host] = {}
        self._came: dict[str, Answer | Exception] = {}
        self._news = threading.Condition()

    def poll(
        self,
        wanted: Mapping[str, tuple[Host, Sequence[str]]],
        *,
        looks: Mapping[str, Look] | None = None,
    ) -> dict[str, Answer | Exception]:
        """Answers by name, of those that came: all, or what came soon after the first.

        Who is missing is still being asked; the answer comes with a later call. In place of an
        answer stands why there is none. `looks`: by name, what else to ask it for once it has
        answered.
        """
        with self._news:
            for name, (host, attempts) in wanted.items():
                if self._asked.get(name) is not host:
                    self._came.pop(name, None)  # of a connection that is no more
                    self._asked[name] = host
                    given = (name, host, tuple(attempts), (looks or {}).get(name))
                    threading.Thread(target=self._ask, args=given, daemon=True).start()
            deadline = time.monotonic() + self._patience_s
            self._news.wait_for(lambda: self._some(wanted), self._patience_s)
            left = min(self._after_the_first_s, max(0.0, deadline - time.monotonic()))
            self._news.wait_for(lambda: all(name in self._came for name in wanted), left)
            answers = {name: self._came.pop(name) for name in wanted if name in self._came}
            for name in answers:
                del self._asked[name]
            return answers

    def _some(self, wanted: Mapping[str, object]) -> bool:
        return not wanted or any(name in self._came for name in wanted)

    def _ask(self, name: str, host: Host, attempts: Sequence[str], look: Look | None) -> None:
        answer: Answer | Exception
        try:
            statuses = host.poll(attempts)
            identity = host.last_identity
            found = look(host, statuses) if look is not None else None
            answer = Answer(host=host, statuses=statuses, identity=identity, found=found)
        except Exception as error:  # noqa: BLE001 (also a full disk here: whoever polls raises it)
            answer = error
        with self._news:
            if self._asked.get(name) is host:
                self._came[name] = answer
                self._news.notify_all()
