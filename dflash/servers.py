"""The servers of a run: what is known of each, and the list that may change while it runs.

The list is a JSON file, `{"servers": [{"url": "http://...", "state": "serving"}, ...]}`, or plain
lines with one URL each. Whoever restarts a server sets its state to `draining` first (anything else
than `serving` has the same effect) and waits until nothing runs there; one that is taken off the
list is drained as well. A list that cannot be read, half written say, leaves things as they were.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash.draining import Draining
from dflash.errors import InputInvalid, UsageError
from dflash.outcomes import Trouble

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from pathlib import Path

    from dflash.window import Window

SERVING, DRAINING = "serving", "draining"
RATE_SECONDS = 120
PACE_WEIGHT = 0.1


class Meter:
    """Tokens a second. They come in whole completions, so only a long stretch says anything."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._seconds: deque[list[int]] = deque()  # second, tokens: few entries at any speed

    def add(self, tokens: int) -> None:
        now = int(time.monotonic())
        if self._seconds and self._seconds[-1][0] == now:
            self._seconds[-1][1] += tokens
        else:
            self._seconds.append([now, tokens])

    def rate(self) -> float:
        now = time.monotonic()
        while self._seconds and now - self._seconds[0][0] > RATE_SECONDS:
            self._seconds.popleft()
        elapsed = min(max(now - self._began, 1e-3), RATE_SECONDS)
        return sum(tokens for _, tokens in self._seconds) / elapsed


@dataclass(slots=True, kw_only=True)
class Request:
    """One that is under way."""

    sent: float
    dropped: Trouble | None = None  # why it was cancelled from here


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """What is known of one server in this run."""

    url: str
    window: Window
    listed: str = SERVING
    running: int = 0
    done: int = 0
    tokens: int = 0
    troubles: Counter[Trouble] = field(default_factory=Counter)
    strikes: int = 0  # outages since the last answer
    rest_until: float = 0.0
    identity: dict[str, Any] | None = None
    wrong: str = ""  # it serves another model: it is asked again who it is, nothing else
    slow_until: float = 0.0
    pace: float = 0.0  # seconds a token, of one answer, on average
    paced: int = 0  # answers in that average
    load: tuple[int, int] | None = None
    last_answer: float = field(default_factory=time.monotonic)
    probed: float = 0.0
    probing: bool = False
    requests: dict[asyncio.Task[Any], Request] = field(default_factory=dict)
    last_error: str = ""
    meter: Meter = field(default_factory=Meter)

    @property
    def name(self) -> str:
        return self.url.split("://", 1)[-1]

    def room(self, now: float) -> bool:
        """Whether one more request may go there."""
        if self.listed != SERVING or now < self.rest_until or now < self.slow_until:
            return False
        # The first request finds out who it is, and whether it is back.
        known = self.identity is not None and not self.strikes and not self.wrong
        return self.running < (self.window.limit if known else 1)

    def in_use(self, now: float) -> bool:
        return self.listed == SERVING and not self.strikes and now >= self.slow_until

    def set_aside(self, until: float) -> None:
        """Too slow: others do its work; then it begins small, and its speed is measured anew."""
        self.slow_until, self.paced, self.pace = until, 0, 0.0
        self.window.limit = 1
        self.window.forget()
        self.drop(Trouble.MOVED)

    def drop(self, trouble: Trouble, *, sent_before: float = float("inf")) -> None:
        """Cancel what runs there; each request goes back into the queue."""
        for task, request in list(self.requests.items()):
            if request.sent < sent_before:
                request.dropped = trouble
                task.cancel()

    def note_answer(self, tokens: int, seconds: float) -> None:
        self.strikes, self.wrong, self.last_answer = 0, "", time.monotonic()
        self.done += 1
        self.tokens += tokens
        self.meter.add(tokens)
        if tokens:
            found = seconds / tokens
            self.paced += 1
            weight = max(PACE_WEIGHT, 1 / self.paced)
            self.pace += (found - self.pace) * weight

    def state(self, now: float) -> str:
        if self.wrong:
            return "refused"
        if self.listed != SERVING:
            return "draining" if self.running else self.listed
        if self.strikes > 1:
            return "down"
        return "slow" if now < self.slow_until else "up"

    def counts(self) -> dict[str, Any]:
        """For progress lines."""
        state = self.state(time.monotonic())
        row: dict[str, Any] = {
            "state": state, "tok/s": round(self.meter.rate(), 1), "done": self.done,
            "running": self.running, "window": self.window.limit,
        }  # fmt: skip
        if self.load is not None:
            row["queued"] = self.load[1]
        if self.troubles:
            row["errors"] = sum(self.troubles.values())
        if state in ("down", "refused"):
            row["error"] = (self.wrong or self.last_error)[:200]
        return row


def clean_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{url!r} is no URL of a server", "Write it as http://HOST:PORT.")
    return url.rstrip("/").removesuffix("/v1")


class ServerList:
    """Fixed addresses, and a file that is looked at again whenever it was written.

    A server that the workspace drains, for a restart, is draining whatever the list says.
    """

    def __init__(self, urls: Sequence[str], path: Path | None = None) -> None:
        self._fixed = dict.fromkeys(map(clean_url, urls), SERVING)
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._listed: dict[str, str] = dict(self._fixed)
        self._draining = Draining.of_job()
        self.states: dict[str, str] = dict(self._fixed)
        self.problem = ""
        if path is not None and not path.is_file():
            raise InputInvalid(
                f"there is no list of servers at {path}", "Check --servers, or start the servers."
            )
        self.look()
        if self.problem:
            raise InputInvalid(f"{path}: {self.problem}", 'Write {"servers": [{"url": "..."}]}.')

    def look(self) -> bool:
        """Read the file if it changed; whether the states did."""
        self._read()
        states = {
            url: DRAINING if state == SERVING and url in self._draining else state
            for url, state in self._listed.items()
        }
        changed, self.states = states != self.states, states
        return changed

    def _read(self) -> None:
        if self._path is None:
            return
        try:
            about = self._path.stat()
            stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
            if stamp == self._seen:
                return
            found = {**self._fixed, **_listed(self._path.read_text(encoding="utf-8"))}
        except (OSError, ValueError, TypeError, KeyError, UsageError) as error:
            self.problem = f"cannot be read as a list of servers ({error})"
            return
        self._seen, self._listed, self.problem = stamp, found, ""


def _listed(text: str) -> dict[str, str]:
    if not text.lstrip().startswith(("{", "[")):
        lines = (line.strip() for line in text.splitlines())
        return {clean_url(line): SERVING for line in lines if line and not line.startswith("#")}
    value = json.loads(text)
    rows = value["servers"] if isinstance(value, dict) else value
    return {
        clean_url(row if isinstance(row, str) else str(row["url"])): (
            SERVING if isinstance(row, str) else str(row.get("state", SERVING))
        )
        for row in rows
    }
