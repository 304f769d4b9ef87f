"""Files to a host and back: in blocks with a hash each, resumed by comparing, renamed when right.

The blocks stream through one command, with no round trip between them; each that was written is
said, so a cut costs only what was on its way. Hashing goes on beside. What an earlier transfer left
is found by its hashes, and the whole file is read back before it gets its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote.errors import (
    AuthRefused,
    HostKeyChanged,
    HostKeyUnknown,
    TransferFailed,
    Unreachable,
)
from remote.supervisor.blocks import ahead, read_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from remote.host_files import HostFiles

BLOCK = 4 << 20
HEADROOM = 1 << 30
PATIENCE_S = 60.0  # without any progress, before we give up for now


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a transfer is. `done` counts what was there already; `rate` does not."""

    phase: str  # comparing, copying, proving
    done: int
    total: int
    files: int
    rate: float  # bytes per second
    eta_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a transfer did."""

    files: int
    bytes: int
    sent: int  # the bytes that had to travel
    cuts: int  # how often the host was lost on the way
    seconds: float


@dataclass(slots=True, kw_only=True)
class Entry:
    """One file on its way. `have`: the other side's is "final" (as long), "partial", or nothing."""

    path: str  # relative; "" for a file that was asked for by itself
    size: int
    mode: int
    stamp: str
    have: str = ""
    hashes: dict[int, str] = field(default_factory=dict)  # of the source, by block
    missing: set[int] = field(default_factory=set)

    def blocks(self) -> range:
        return range(-(-self.size // BLOCK))

    def length(self, block: int) -> int:
        return min(BLOCK, self.size - block * BLOCK)


Hashes = tuple[list[str], str]  # of the blocks, and the stamp of the file


class Meter:
    """Counts, and tells the caller a few times a second, and of each phase when it begins."""

    def __init__(self, tell: Callable[[Progress], None] | None) -> None:
        self._tell = tell
        self.total = self.done = self.sent = self.files = self.cuts = 0
        self.began = time.monotonic()
        self._copying_since = 0.0
        self._told = 0.0
        self._phase = ""

    def copying(self) -> None:
        """From now on bytes travel."""
        self._copying_since = time.monotonic()

    def add(self, phase: str, done: int, *, sent: int = 0, force: bool = False) -> None:
        now = time.monotonic()
        self.done += done
        self.sent += sent
        begins = phase != self._phase
        self._phase = phase
        if self._tell is None or (now - self._told < 0.2 and not force and not begins):
            return
        self._told = now
        spent = now - self._copying_since if self._copying_since else 0.0
        rate = self.sent / spent if spent > 0 else 0.0
        left = (self.total - self.done) / rate if rate else None
        self._tell(
            Progress(
                phase=phase, done=self.done, total=self.total, files=self.files, rate=rate,
                eta_s=left,
            )
        )  # fmt: skip

    def count(self, entries: Sequence[Entry]) -> None:
        """What there is to do."""
        self.total, self.files = sum(entry.size for entry in entries), len(entries)

    def report(self) -> Report:
        self.add("proving", 0, force=True)
        return Report(
            files=self.files, bytes=self.total, sent=self.sent, cuts=self.cuts,
            seconds=round(time.monotonic() - self.began, 3),
        )  # fmt: skip


class Link:
    """Requests of one transfer; repeats what a cut took, for as long as it makes progress."""

    def __init__(
        self, host: HostFiles, tell: Callable[[Progress], None] | None, patience_s: float
    ) -> None:
        self.host = host
        self.meter = Meter(tell)
        self.patience_s = patience_s
        self._silent_since: float | None = None
        self._tries = 0

    def ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            try:
                answer = self.host.transfer_verb(verb, body)
            except Unreachable as error:
                self.cut(error)
            else:
                self.moved()
                return answer

    def moved(self) -> None:
        """Something arrived: whatever cut comes next, there is progress."""
        self._silent_since, self._tries = None, 0

    def cut(self, error: Unreachable) -> None:
        """Waits a little before the next try; raises the error when nothing moved for long."""
        if isinstance(error, (AuthRefused, HostKeyChanged, HostKeyUnknown)):
            raise error  # an answer, which no repetition changes
        now = time.monotonic()
        self.meter.cuts += 1
        self._silent_since = self._silent_since or now
        self._tries += 1
        if now - self._silent_since > self.patience_s:
            error.hint = "what arrived is kept; the same command goes on with it"
            raise error
        time.sleep(random.uniform(0.5, 1.0) * min(5.0, 0.05 * 2**self._tries))

    def hashes(self, base: str, wanted: Sequence[tuple[Entry, bool]]) -> list[Hashes]:
        """The hashes of files on the host, of a part where the second is true."""
        found: list[Hashes] = []
        current: list[str] = []
        while len(found) < len(wanted):
            rest = wanted[len(found) : len(found) + 1000]
            files = [{"file": entry.path, "partial": part} for entry, part in rest]
            body = {"path": base, "files": files, "block": BLOCK, "first": len(current)}
            for one in self.ask("hashes", body)["files"]:
                current += one["hashes"]
                if one["end"]:
                    found.append((current, one["stamp"]))
                    current = []
        return found


def keep_equal(meter: Meter, entry: Entry, right: dict[int, str], found: list[str]) -> None:
    """Drops from the missing blocks those that are right; a whole file counts only as a whole."""
    equal = {block for block, digest in enumerate(found) if right.get(block) == digest}
    if entry.have == "final" and len(equal) < len(entry.blocks()):
        entry.have, equal = "", set()
    entry.missing -= equal
    meter.add("comparing", sum(entry.length(block) for block in equal))


def missing(entries: list[Entry]) -> list[tuple[Entry, int]]:
    """The blocks that are still to travel, in order."""
    return [(entry, block) for entry in entries for block in sorted(entry.missing)]


def carry(
    link: Link, entries: list[Entry], move: Callable[[list[tuple[Entry, int]]], None]
) -> None:
    """Moves all missing blocks, again after each cut."""
    link.meter.copying()
    while blocks := missing(entries):
        try:
            move(blocks)
        except Unreachable as error:
            link.cut(error)


def name_of(base: str, entry: Entry) -> str:
    return f"{base.rstrip('/')}/{entry.path}" if entry.path else base


@contextlib.contextmanager
def reading(path: Path) -> Iterator[int]:
    """A file, to be read by position."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise TransferFailed(f"Cannot read {path}: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def digests_of(fd: int, entry: Entry, blocks: Iterable[int]) -> list[str]:
    """sha256 of some blocks of a file here."""

    def digest(block: int) -> str:
        return hashlib.sha256(read_block(fd, block * BLOCK, entry.length(block))).hexdigest()

    return list(ahead(digest, blocks) if entry.size > BLOCK else map(digest, blocks))
