"""Logs that cannot fill the disk: the head and the tail stay."""

from __future__ import annotations

import contextlib
import ctypes
import os

from remote.supervisor.base import INJECT, STREAMS
from remote.supervisor.files import file_size, to_bytes

LOG_HEAD = 16 << 20
LOG_TAIL = 48 << 20
PAGE = 4096


class Bounds:
    """Gives the middle of long streams back to the disk. Offsets stay: it becomes a hole."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.dropped: dict[str, tuple[int, int]] = {}
        self.head = int(INJECT.get("log_head", LOG_HEAD))
        self.tail = int(INJECT.get("log_tail", LOG_TAIL))
        self.fd = os.open(
            os.path.join(job, "dropped.json"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        self._say()

    def keep(self) -> None:
        for stream in STREAMS:
            with contextlib.suppress(OSError):
                self._bound(stream)

    def _bound(self, stream: str) -> None:
        path = os.path.join(self.job, STREAMS[stream])
        size = file_size(path)
        first, last = self.dropped.get(stream, (self.head, self.head))
        if size - last <= 2 * self.tail:
            return
        end = (size - self.tail) // PAGE * PAGE
        first = -(-first // PAGE) * PAGE
        if end <= first:
            return
        self.dropped[stream] = (first, end)
        # Said before it is done: a reader may miss bytes that are still there, never read zeros.
        # In place, for on a full disk this is what makes room.
        self._say()
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            punch_hole(fd, first, end - first)
        finally:
            os.close(fd)

    def _say(self) -> None:
        os.pwrite(self.fd, to_bytes(dict(self.dropped)).ljust(512), 0)


def punch_hole(fd: int, start: int, length: int) -> None:
    """FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE; file systems without it keep the bytes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).fallocate(
            fd, 3, ctypes.c_int64(start), ctypes.c_int64(length)
        )


def log_tail(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
        return file.read(8192)
    return b""
