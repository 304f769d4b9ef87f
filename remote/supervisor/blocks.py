"""Blocks of files: read and written by position, hashed beside; what a file is called on its way.

Both ends of a transfer use it: this machine's part of `remote` and the program on the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from remote.supervisor.files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")

WORKERS = min(4, os.cpu_count() or 1)
AHEAD = 2 * WORKERS
"""Blocks in memory at a time: enough for the disk and the hashing to keep up with the network."""


def ahead(
    work: Callable[[T], R], things: Iterable[T], *, workers: int = WORKERS, depth: int = AHEAD
) -> Iterator[R]:
    """What `work` makes of each thing, in order; a few of them are worked on beforehand."""
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for thing in things:
                waiting.append(pool.submit(work, thing))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for left in waiting:
                left.cancel()


def partial(path: str) -> str:
    """Where a file lies until it is whole."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) > 240:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, f".{name}.partial")


def stamp(info: os.stat_result) -> str:
    """Changes when the content may have changed."""
    return "%d:%d:%d:%d" % (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


def read_block(fd: int, offset: int, size: int) -> bytes:
    pieces = []
    while size:
        piece = os.pread(fd, size, offset)
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_block(path: str, offset: int, data: bytes, total: int) -> None:
    """Puts bytes into the part of a file; the first ones take the room of all."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_blocks == 0:
            reserve(fd, total)
        os.lseek(fd, offset, os.SEEK_SET)
        write_all(fd, data)
    finally:
        os.close(fd)


def reserve(fd: int, size: int) -> None:
    """Takes the room without changing the size (FALLOC_FL_KEEP_SIZE), where that can be done."""
    with contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.fallocate(fd, 1, ctypes.c_int64(0), ctypes.c_int64(max(1, size)))
        if failed and ctypes.get_errno() == errno.ENOSPC:
            raise OSError(errno.ENOSPC, "No space left on device")
