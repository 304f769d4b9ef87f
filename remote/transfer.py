"""Files to a host and back: in blocks with a hash each, resumed by comparing, renamed when right.

The blocks travel as the input and output of one command after the other. A cut loses what the
command had not written yet; the next attempt finds by its hashes what is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote.errors import NoRoom, TransferFailed, Unreachable
from remote.supervisor.files import free_bytes, sync_dir
from remote.supervisor.transfer import partial, read_block, reserve, stamp, write_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from remote.host import Host

BLOCK = 4 << 20
LEAST, MOST = BLOCK, 64 << 20  # bytes per command: few enough to lose, enough to be fast
BATCH_S = 3.0  # what a command should take
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
    missing: list[int] = field(default_factory=list)

    def blocks(self) -> range:
        return range(-(-self.size // BLOCK))

    def length(self, block: int) -> int:
        return min(BLOCK, self.size - block * BLOCK)


Hashes = tuple[list[str], str]  # of the blocks, and the stamp of the file


class Meter:
    """Counts, and tells the caller a few times a second."""

    def __init__(self, tell: Callable[[Progress], None] | None) -> None:
        self._tell = tell
        self.total = self.done = self.sent = self.files = self.cuts = 0
        self.began = time.monotonic()
        self._copying_since = 0.0
        self._told = 0.0

    def add(self, phase: str, done: int, *, sent: int = 0, force: bool = False) -> None:
        now = time.monotonic()
        if phase == "copying" and not self._copying_since:
            self._copying_since = now
        self.done += done
        self.sent += sent
        if self._tell is None or (now - self._told < 0.2 and not force):
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

    def report(self) -> Report:
        return Report(
            files=self.files, bytes=self.total, sent=self.sent, cuts=self.cuts,
            seconds=round(time.monotonic() - self.began, 3),
        )  # fmt: skip


class Link:
    """Requests of one transfer; repeats what a cut took, for as long as it makes progress."""

    def __init__(self, host: Host, meter: Meter, patience_s: float) -> None:
        self.host = host
        self.meter = meter
        self.patience_s = patience_s
        self.batch = LEAST
        self._silent_since: float | None = None
        self._tries = 0

    def ask(self, verb: str, body: dict[str, Any], *, raw: bytes = b"") -> dict[str, Any]:
        while True:
            began = time.monotonic()
            size = len(raw) or int(body.get("bytes", 0))
            try:
                answer = self.host.transfer_verb(verb, body, raw=raw, timeout=60 + size / 50_000)
            except Unreachable as error:
                self._wait(error)
                if size > BLOCK:
                    raise Smaller from error
                continue
            self._silent_since, self._tries = None, 0
            if size:
                self._pace(size, time.monotonic() - began)
            return answer

    def _wait(self, error: Unreachable) -> None:
        now = time.monotonic()
        self.meter.cuts += 1
        self.batch = max(LEAST, self.batch // 2)
        self._silent_since = self._silent_since or now
        self._tries += 1
        if now - self._silent_since > self.patience_s:
            error.hint = "what arrived is kept; the same command goes on with it"
            raise error
        time.sleep(random.uniform(0.5, 1.0) * min(5.0, 0.1 * 2**self._tries))

    def _pace(self, size: int, seconds: float) -> None:
        if size >= self.batch:
            faster = seconds < BATCH_S / 2
            slower = seconds > BATCH_S * 2
            self.batch = min(MOST, self.batch * 2) if faster else self.batch
            self.batch = max(LEAST, self.batch // 2) if slower else self.batch

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


class Smaller(Exception):
    """A large command was cut: compare, and go on in smaller ones."""


# --- to the host ---


def push(
    host: Host,
    local: Path,
    remote: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    headroom: int = HEADROOM,
    patience_s: float = PATIENCE_S,
) -> Report:
    """Send a file or a tree. Files that the host has with the same content are not sent."""
    entries, folders = scan(local)
    meter = Meter(progress)
    meter.total, meter.files = sum(entry.size for entry in entries), len(entries)
    link = Link(host, meter, patience_s)
    listed = [{"path": e.path, "size": e.size, "mode": e.mode} for e in entries]
    ask = {"path": remote, "files": listed, "folders": folders, "headroom": headroom}
    for entry, have in zip(entries, link.ask("put_open", ask)["have"], strict=True):
        entry.have = have
    compare_with_host(link, local, remote, entries)
    while any(entry.missing for entry in entries):
        with contextlib.suppress(Smaller):
            for batch in batches(entries, link):
                send(link, local, remote, batch)
    unnamed = [entry for entry in entries if entry.have != "final"]
    stamps = prove_on_host(link, remote, unnamed)
    closing = [
        {"path": e.path, "size": e.size, "mode": e.mode, "stamp": stamps[e.path]} for e in unnamed
    ]
    if closing:
        link.ask("put_close", {"path": remote, "files": closing})
    meter.add("proving", 0, force=True)
    return meter.report()


def scan(local: Path) -> tuple[list[Entry], list[str]]:
    """The files at a path here, in order, and its folders."""
    if not local.exists():
        raise TransferFailed(f"Cannot send {local}: there is no such file or folder")
    if local.is_file():
        return [entry_of(local, "")], []
    entries, folders = [], []
    for folder, below, names in os.walk(local):
        start = Path(folder).relative_to(local)
        for name in below:
            if (Path(folder) / name).is_symlink():
                raise TransferFailed(
                    f"Cannot send {folder}/{name}: it is a link to a folder",
                    hint="replace it by the folder itself, or send that by itself",
                )
            folders.append(str(start / name))
        entries += [
            entry_of(Path(folder) / name, str(start / name))
            for name in names
            if not (name.startswith(".") and name.endswith(".partial"))
        ]
    return sorted(entries, key=lambda entry: entry.path), sorted(folders)


def entry_of(path: Path, name: str) -> Entry:
    try:
        info = path.stat()
    except OSError as error:
        raise TransferFailed(f"Cannot send {path}: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode):
        raise TransferFailed(f"Cannot send {path}: it is neither a file nor a folder")
    mode = stat.S_IMODE(info.st_mode) & 0o777
    return Entry(path=name, size=info.st_size, mode=mode, stamp=stamp(info))


def compare_with_host(link: Link, local: Path, remote: str, entries: list[Entry]) -> None:
    """Finds the blocks that the host lacks, by the content of those it has."""
    known = [entry for entry in entries if entry.have]
    theirs = link.hashes(remote, [(entry, entry.have == "partial") for entry in known])
    for entry in entries:
        entry.missing = list(entry.blocks())
    for entry, (digests, _) in zip(known, theirs, strict=True):
        with reading(local / entry.path) as fd:
            ours = [digest_of(fd, entry, block) for block in entry.blocks()[: len(digests)]]
        entry.hashes = dict(enumerate(ours))
        keep_equal(link.meter, entry, dict(enumerate(digests)), ours)


def keep_equal(meter: Meter, entry: Entry, right: dict[int, str], found: list[str]) -> None:
    """Drops from the missing blocks those that are right; a whole file counts only as a whole."""
    equal = [block for block, digest in enumerate(found) if right.get(block) == digest]
    if entry.have == "final" and len(equal) < len(entry.blocks()):
        entry.have, equal = "", []
    entry.missing = [block for block in entry.missing if block not in set(equal)]
    meter.add("comparing", sum(entry.length(block) for block in equal))


def find_arrived(link: Link, remote: str, batch: list[tuple[Entry, int]]) -> None:
    """After a cut: which blocks had arrived after all. Small files are just sent again."""
    cut = list({id(entry): entry for entry, _ in batch if entry.size > BLOCK}.values())
    for entry, (theirs, _) in zip(cut, link.hashes(remote, [(e, True) for e in cut]), strict=True):
        arrived = {b for b in entry.missing if theirs[b : b + 1] == [entry.hashes.get(b)]}
        entry.missing = [block for block in entry.missing if block not in arrived]
        size = sum(entry.length(block) for block in arrived)
        link.meter.add("copying", size, sent=size)


def batches(entries: list[Entry], link: Link) -> Iterator[list[tuple[Entry, int]]]:
    """Missing blocks, as many to a command as it should carry at the time."""
    batch: list[tuple[Entry, int]] = []
    size = 0
    for entry in entries:
        for block in list(entry.missing):
            batch.append((entry, block))
            size += entry.length(block)
            if size >= link.batch or len(batch) >= 2000:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def send(link: Link, local: Path, remote: str, batch: list[tuple[Entry, int]]) -> None:
    frames, pieces = [], []
    for entry, block in batch:
        with reading(local / entry.path) as fd:
            data = read_block(fd, block * BLOCK, entry.length(block))
            if stamp(os.fstat(fd)) != entry.stamp or len(data) != entry.length(block):
                raise TransferFailed(
                    f"{local / entry.path} was changed while it was sent",
                    hint="stop whatever writes to it, and send it again",
                )
        entry.hashes[block] = hashlib.sha256(data).hexdigest()
        frames.append(
            {"file": entry.path, "offset": block * BLOCK, "size": len(data),
             "sha256": entry.hashes[block], "total": entry.size}
        )  # fmt: skip
        pieces.append(data)
    raw = b"".join(pieces)
    try:
        link.ask("put", {"path": remote, "frames": frames}, raw=raw)
    except Smaller:
        find_arrived(link, remote, batch)
        raise
    for entry, block in batch:
        entry.missing.remove(block)
    link.meter.add("copying", len(raw), sent=len(raw))


def prove_on_host(link: Link, remote: str, entries: list[Entry]) -> dict[str, str]:
    """Reads whole files back on the host; their stamps when every block is right."""
    full = [entry for entry in entries if entry.size]
    stamps = {entry.path: "" for entry in entries}
    for entry, (theirs, found) in zip(
        full, link.hashes(remote, [(entry, True) for entry in full]), strict=True
    ):
        link.meter.add("proving", 0)
        ours = [entry.hashes[block] for block in entry.blocks()]
        if theirs != ours:
            raise TransferFailed(
                f"{name_of(remote, entry)} on {link.host.label} does not read back as it was sent",
                hint="send it again; if it happens twice, do not trust that disk or memory",
            )
        stamps[entry.path] = found
    return stamps


def name_of(base: str, entry: Entry) -> str:
    return f"{base.rstrip('/')}/{entry.path}" if entry.path else base


# --- from the host ---


def pull(
    host: Host,
    remote: str,
    local: Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    headroom: int = HEADROOM,
    patience_s: float = PATIENCE_S,
) -> Report:
    """Fetch a file or a tree. Files that are here with the same content are not fetched."""
    meter = Meter(progress)
    link = Link(host, meter, patience_s)
    listing = link.ask("list", {"path": remote})
    entries = [
        Entry(path=one["path"], size=one["size"], mode=one["mode"], stamp=one["stamp"])
        for one in listing["files"]
    ]
    for name in [entry.path for entry in entries] + listing["folders"]:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise TransferFailed(f"{host.label} names {name!r}, which leaves its folder")
    meter.total, meter.files = sum(entry.size for entry in entries), len(entries)
    make_room(local, entries, listing["folders"], headroom)
    compare_with_here(link, local, remote, entries)
    while any(entry.missing for entry in entries):
        with contextlib.suppress(Smaller):
            for batch in batches(entries, link):
                fetch(link, local, remote, batch)
    for entry in entries:
        if entry.have != "final":
            finish(local, entry)
            meter.add("proving", 0)
    meter.add("proving", 0, force=True)
    return meter.report()


def make_room(local: Path, entries: list[Entry], folders: list[str], headroom: int) -> None:
    """Folders for all files, if they fit.

    Raises:
        NoRoom: they do not.
    """
    need = 0
    for entry in entries:
        path = local / entry.path
        if path.is_dir():
            raise TransferFailed(f"Cannot fetch to {path}: it is a folder here")
        sizes = [size_of(path), size_of(Path(partial(str(path))))]
        entry.have = "final" if sizes[0] == entry.size else "partial" if sizes[1] > 0 else ""
        if entry.have != "final":
            need += max(0, entry.size - max(0, sizes[1]))
    free = free_bytes(str(local.absolute()))
    if need and free is not None and free < need + headroom:
        raise NoRoom(str(local), need=need, free=free, headroom=headroom)
    for folder in [*folders, *{str(Path(entry.path).parent) for entry in entries if entry.path}]:
        (local / folder).mkdir(parents=True, exist_ok=True)
    if not any(entry.path for entry in entries):
        local.absolute().parent.mkdir(parents=True, exist_ok=True)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


def compare_with_here(link: Link, local: Path, remote: str, entries: list[Entry]) -> None:
    known = [entry for entry in entries if entry.have]
    theirs = link.hashes(remote, [(entry, False) for entry in known])
    for entry in entries:
        entry.missing = list(entry.blocks())
    for entry, (digests, found) in zip(known, theirs, strict=True):
        if found != entry.stamp:
            raise changed(link.host, remote, entry)
        entry.hashes = dict(enumerate(digests))
        path = local / entry.path
        with reading(path if entry.have == "final" else Path(partial(str(path)))) as fd:
            here = [digest_of(fd, entry, block) for block in entry.blocks()]
        keep_equal(link.meter, entry, entry.hashes, here)


def fetch(link: Link, local: Path, remote: str, batch: list[tuple[Entry, int]]) -> None:
    frames = [
        {"file": entry.path, "offset": block * BLOCK, "size": entry.length(block)}
        for entry, block in batch
    ]
    size = sum(entry.length(block) for entry, block in batch)
    answer = link.ask("get", {"path": remote, "frames": frames, "bytes": size})
    raw, at = answer.get("raw", memoryview(b"")), 0
    for (entry, block), frame in zip(batch, answer["frames"], strict=True):
        data = raw[at : at + frame["size"]]
        at += frame["size"]
        if frame["stamp"] != entry.stamp:
            raise changed(link.host, remote, entry)
        if hashlib.sha256(data).hexdigest() != frame["sha256"] or len(data) != entry.length(block):
            raise TransferFailed(f"A block of {entry.path} did not arrive as it was sent")
        target = partial(str(local / entry.path))
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(fd).st_blocks == 0:
                reserve(fd, entry.size)
            write_at(fd, data, block * BLOCK)
        finally:
            os.close(fd)
        entry.hashes[block] = frame["sha256"]
        entry.missing.remove(block)
    link.meter.add("copying", size, sent=size)


def changed(host: Host, remote: str, entry: Entry) -> TransferFailed:
    return TransferFailed(
        f"{name_of(remote, entry)} on {host.label} was changed while it was fetched",
        hint="wait until it is whole, and fetch it again",
    )


def finish(local: Path, entry: Entry) -> None:
    """Reads the whole file back here, and gives it its name."""
    path = local / entry.path
    source = partial(str(path))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(source, flags, 0o600)
    try:
        os.ftruncate(fd, entry.size)
        wrong = [b for b in entry.blocks() if digest_of(fd, entry, b) != entry.hashes[b]]
        if wrong:
            raise TransferFailed(
                f"{path} does not read back as it arrived (blocks {wrong[:5]})",
                hint="fetch it again; if it happens twice, do not trust that disk",
            )
        os.fchmod(fd, entry.mode)
        os.fsync(fd)
    finally:
        os.close(fd)
    Path(source).rename(path)
    sync_dir(str(path.absolute().parent))


# --- both ---


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


def digest_of(fd: int, entry: Entry, block: int) -> str:
    return hashlib.sha256(read_block(fd, block * BLOCK, entry.length(block))).hexdigest()
