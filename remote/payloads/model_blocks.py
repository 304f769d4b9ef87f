"""One file of a model into place: in blocks, many at a time, over as many runs as it takes.

Beside `NAME.partial`, allocated at its full size, lies a journal with a line for each block that is
there. A block of an earlier run is used when its checksum still holds; the file appears when its
SHA-256, read back from where it lies, is right. Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import zlib
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Tuple,
)

from remote.payloads.records import PARTIAL, Refused, emit, sync_folder

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from pathlib import Path

    from remote.payloads.model_sources import Model, Source

BLOCK = 8 << 20
FLUSH = 64 << 20
"""Written to the disk after so many bytes: it works while the next ones are read and hashed."""
PIECE = 1 << 20
"""One write: larger ones cost ext4 more processor time a byte."""
GIB = 1 << 30


class Meter:
    """Progress lines, a few a second whatever the number of threads."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._told = 0.0
        self._began = time.monotonic()

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            now = time.monotonic()
            if now - self._told < 0.5 and self._done < self._total:
                return
            self._told = now
            rate = self._done / 1e6 / max(now - self._began, 1e-9)
            text = "copied %.2f of %.2f GiB" % (self._done / GIB, self._total / GIB)
            speed = {"MB/s": round(rate, 1)}
            emit("step", text, self._done, self._total, metrics=speed)


def size_of(path: Path) -> int:
    """A file's size; -1 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def sha256_of(path: Path) -> str:
    """A file's hash, read back from where it lies."""
    with open(path, "rb", buffering=0) as handle:
        return hash_back(handle.fileno(), [(0, size_of(path))], lambda *_: None)


def hash_back(
    handle: int, spans: Iterable[Tuple[int, int]], look: Callable[[int, memoryview], None]
) -> str:
    """The hash of a file's spans in order, each shown to `look` as it was read back."""
    seen, buffer = hashlib.sha256(), memoryview(bytearray(BLOCK))
    for begin, end in spans:
        while begin < end:
            view = buffer[: min(BLOCK, end - begin)]
            got = os.preadv(handle, [view], begin)
            if not got:
                break
            look(begin, view[:got])
            seen.update(view[:got])
            begin += got
    return seen.hexdigest()


class Copy:
    """A file on its way to `final`."""

    def __init__(self, final: Path, file: Source) -> None:
        self.final, self.file = final, file
        self.partial = final.with_name(final.name + PARTIAL)
        self.journal = final.with_name(final.name + ".blocks" + PARTIAL)
        head = {"size": file.size, "stamp": file.stamp, "sha256": file.sha256, "block": BLOCK}
        self.sums = self._left(head) if size_of(self.partial) == file.size else {}
        if not self.sums:
            self.partial.unlink(missing_ok=True)
        # Written anew: a line added to a torn one would be lost with it.
        kept = [json.dumps(one) + "\n" for one in self.sums.items()]
        self.lines = open(self.journal, "w", encoding="utf-8")  # noqa: SIM115
        self.lines.write("".join([json.dumps(head) + "\n", *kept]))
        self.lines.flush()
        self.handle = os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o644)
        self._lock = threading.Lock()
        self._unflushed = 0
        self._buffers = threading.local()

    def _left(self, head: Mapping[str, Any]) -> Dict[int, int]:
        found = {}
        try:
            lines = self.journal.read_text(encoding="utf-8").splitlines()
            if json.loads(lines[0]) == head:
                for line in lines[1:]:
                    start, checksum = json.loads(line)
                    found[start] = checksum
        except (OSError, ValueError, IndexError, TypeError):
            pass  # what was read so far holds; a torn last line is none
        return found

    def close(self) -> None:
        self.lines.close()
        os.close(self.handle)

    def block(self, model: Model, start: int) -> int:
        """Bring one block, unless an earlier run did and it still holds; its size."""
        size = min(BLOCK, self.file.size - start)
        view = self._buffer()[:size]
        if start in self.sums:
            got = os.preadv(self.handle, [view], start)
            if got == size and zlib.crc32(view) == self.sums[start]:
                return size
        model.read(self.file, start, view)
        checksum, at, rest = zlib.crc32(view), start, view
        while rest:
            put = os.pwrite(self.handle, rest[:PIECE], at)
            at, rest = at + put, rest[put:]
        with self._lock:
            self.sums[start] = checksum
            self.lines.write(json.dumps([start, checksum]) + "\n")
            self.lines.flush()
            self._unflushed += size
            flush = self._unflushed >= FLUSH
            if flush:
                self._unflushed = 0
        if flush:
            os.fdatasync(self.handle)
        return size

    def _buffer(self) -> memoryview:
        """One for each thread: memory that is touched for the first time costs more than a copy."""
        if not hasattr(self._buffers, "view"):
            self._buffers.view = memoryview(bytearray(min(BLOCK, self.file.size)))
        view: memoryview = self._buffers.view
        return view

    def finish(self, label: str, brought: List[Future[int]], meter: Meter) -> str:
        """Follow the blocks in order, read them back, and let the file appear; its hash."""

        def spans() -> Iterator[Tuple[int, int]]:
            for number, job in enumerate(brought):
                size = job.result()
                meter.add(size)
                yield number * BLOCK, number * BLOCK + size

        def look(start: int, view: memoryview) -> None:
            whole = start % BLOCK == 0 and len(view) == min(BLOCK, self.file.size - start)
            if not self.file.sha256 and whole and zlib.crc32(view) != self.sums[start]:
                raise Refused(
                    "%s does not read back as it was written" % self.partial,
                    "the memory or disk of this host is not to be trusted; take another",
                )

        digest = hash_back(self.handle, spans(), look)
        if self.file.sha256 and digest != self.file.sha256:
            self.partial.unlink(missing_ok=True)
            raise Refused(
                "%s/%s is damaged: its sha256 is %s, it should be %s"
                % (label, self.file.path, digest, self.file.sha256),
                "fetch the model again",
            )
        os.fsync(self.handle)
        os.replace(self.partial, self.final)
        self.journal.unlink(missing_ok=True)
        sync_folder(self.final.parent)
        return digest


def copy_file(
    model: Model, dest: Path, file: Source, readers: ThreadPoolExecutor, meter: Meter
) -> str:
    """Copies one file and returns its hash."""
    final = dest / file.path
    final.parent.mkdir(parents=True, exist_ok=True)
    if file.sha256 and size_of(final) == file.size and sha256_of(final) == file.sha256:
        meter.add(file.size)
        return file.sha256
    final.unlink(missing_ok=True)  # its room is wanted for the copy
    copy = Copy(final, file)
    brought: List[Future[int]] = []
    try:
        if file.size:
            os.posix_fallocate(copy.handle, 0, file.size)  # a full disk is found here
        brought = [readers.submit(copy.block, model, at) for at in range(0, file.size, BLOCK)]
        return copy.finish(model.label, brought, meter)
    finally:
        for job in brought:
            job.cancel()
        for job in brought:
            if not job.cancelled():
                job.exception()  # nobody writes any more when the file is closed
        copy.close()
