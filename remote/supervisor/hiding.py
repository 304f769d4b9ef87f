"""Secrets hidden in what a job writes, between the job and its log files.

Each stream passes a small process of its own. It is no child of the supervisor and lives until the
last writer has closed the stream, so that the supervisor's death takes nothing from the payload.
Only jobs that got secrets write this way; all others write straight into their files.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import re
import select
import signal
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from remote.supervisor.keys import stamp_of, values_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SHORTEST = 6
"""Characters. Hiding shorter values would hide half of every log; they are not handed out."""
LINE = 12
"""A line of a longer secret, such as a key file, that is hidden by itself."""
PIECE = 1 << 16
LOOK_S = 30.0
"""Between two looks for new keys while a stream is silent; they do not come so often."""


def forms(value: str) -> set[str]:
    """The ways in which a value is written down by those who do not mean to."""
    found = {value, quote(value, safe=""), quote(value), quote_plus(value)}
    found.add(json.dumps(value)[1:-1])
    found.add(json.dumps(value, ensure_ascii=False)[1:-1])
    for line in value.splitlines():
        if len(line.strip()) >= LINE:
            found.add(line.strip())
    raw = value.encode()
    for lead in range(3):
        # Inside a longer base64 text a value looks different at each of three positions; the
        # characters that also depend on its neighbours are left out.
        text = base64.b64encode(b"\0" * lead + raw).decode().rstrip("=")
        inner = text[(0, 2, 3)[lead] : len(text) - (1 if (len(raw) + lead) % 3 else 0)]
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return {form for form in found if len(form) >= SHORTEST}


def begun(data: bytes, encoded: Sequence[bytes]) -> int:
    """How many bytes at the end could be the beginning of one of the forms."""
    longest = max(map(len, encoded), default=0)
    tail = data[-(longest - 1) :] if longest > 1 else b""
    for at in range(len(tail)):
        rest = tail[at:]
        if any(form.startswith(rest) and len(form) > len(rest) for form in encoded):
            return len(rest)
    return 0


class Hider:
    """Hides values in a stream of bytes without changing its length."""

    def __init__(self, values: Iterable[str]) -> None:
        self._forms: list[bytes] = []
        self._held = b""
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """From now on these are hidden as well."""
        found = {form.encode() for value in values for form in forms(value)}
        self._forms = sorted(found.union(self._forms), key=len, reverse=True)  # the longest wins
        self._pattern = re.compile(b"|".join(map(re.escape, self._forms)))

    def feed(self, data: bytes) -> bytes:
        """What may be written now; the possible beginning of a value is held back."""
        if not self._forms:
            return data
        hidden = self._pattern.sub(lambda match: b"*" * len(match[0]), self._held + data)
        kept = len(hidden) - begun(hidden, self._forms)
        self._held = hidden[kept:]
        return hidden[:kept]

    def end(self) -> bytes:
        """The rest, when nothing more comes."""
        rest, self._held = self._held, b""
        return b"*" * len(rest) if len(rest) >= SHORTEST else rest


def start_hiding(
    values: Sequence[str], files: Sequence[int], later: str = ""
) -> tuple[list[int], int]:
    """Puts a process before each file. Call it before becoming a sub-reaper.

    Args:
        later: the file by which the payload gets new keys, to hide those too.

    Returns:
        The ends to write into, and one that is at its end when all has been written.
    """
    done, undone = os.pipe()
    ends = []
    for file in files:
        source, end = os.pipe()
        keep = {source, file, undone}
        _apart(functools.partial(_pump, Hider(values), source, file, later), keep)
        os.close(source)
        ends.append(end)
    os.close(undone)
    return ends, done


def _apart(work: Callable[[], None], keep: set[int]) -> None:
    """Runs work in a process that is nobody's child, with only these files open."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, signal.SIG_IGN)
            _close_others(keep)
            work()
    finally:
        os._exit(0)


def _close_others(keep: set[int]) -> None:
    """Also the locks of the supervisor: whoever holds one of these is taken for it."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _pump(hider: Hider, source: int, file: int, later: str) -> None:
    known = None
    while True:
        ready, _, _ = select.select([source], [], [], LOOK_S if later else None)
        data = os.read(source, PIECE) if ready else None
        # Whoever wrote this can have had no newer keys than are there now.
        found = stamp_of(later)
        if found != known:
            known = found
            hider.add(values_in(later))
        if data is None:
            continue
        if not data:
            return _write(file, hider.end())
        _write(file, hider.feed(data))


def _write(file: int, data: bytes) -> None:
    """A full disk loses output; a writer that must wait for it would lose the job."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(file, data) :]
