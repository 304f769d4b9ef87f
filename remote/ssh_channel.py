"""One command on one channel: both streams at once, within a deadline, never without bounds."""

from __future__ import annotations

import select
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

CHUNK = 1 << 15
LONGEST_OUTPUT = 256 << 20
"""More than any answer of ours; a command that says more is cut off, not kept in memory."""


class TooMuchOutput(OSError):
    """A command said more than is kept."""


class Sessions:
    """Turns on one connection. The limit shrinks when the server turns out to allow fewer."""

    def __init__(self, limit: int) -> None:
        self.limit = self._most = limit
        self.busy = 0
        self._turn = threading.Condition()

    def acquire(self, *, timeout: float) -> bool:
        with self._turn:
            if not self._turn.wait_for(lambda: self.busy < self.limit, timeout):
                return False
            self.busy += 1
            return True

    def release(self) -> None:
        with self._turn:
            self.busy -= 1
            self._turn.notify_all()

    def give_way(self, *, timeout: float) -> bool:
        """The server refused one more: keep to fewer, and wait until another one ended.

        False when there is no other one to wait for; nobody gets a turn then until `reset`.
        """
        with self._turn:
            if self.busy <= 1:
                self.limit = 1
                return False
            self.limit = max(1, min(self.limit, self.busy - 1))
            return self._turn.wait_for(lambda: self.busy <= self.limit, timeout)

    def reset(self) -> None:
        """A new connection, of whose server nothing is known."""
        with self._turn:
            self.limit = self._most
            self._turn.notify_all()


def converse(channel: paramiko.Channel, data: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Send the input and read both streams at once: any one left alone can stop the others."""
    ready = channel.fileno()
    out, err = bytearray(), bytearray()
    view = memoryview(data)
    if not data:
        channel.shutdown_write()
    while True:
        moved = False
        if view and channel.send_ready():
            view = view[channel.send(bytes(view[:CHUNK])) :]
            moved = True
            if not view:
                channel.shutdown_write()
        moved |= _drain(channel, out, err)
        if moved:
            left_of(deadline)
            continue
        if channel.closed or (channel.eof_received and channel.status_event.is_set()):
            _drain(channel, out, err)  # what arrived between the last look and the end
            if channel.exit_status < 0:
                left_of(deadline)  # our own watch closed it: say so
            return bytes(out), bytes(err)
        left = left_of(deadline)
        # The pipe does not tell of a window that opened nor of an exit status: look again soon.
        pause = 0.005 if view or channel.eof_received else 0.25
        select.select([ready], [], [], min(left, pause))
        if channel.eof_received and not channel.status_event.is_set():
            channel.status_event.wait(min(left, 0.25))


def _drain(channel: paramiko.Channel, out: bytearray, err: bytearray) -> bool:
    before = len(out) + len(err)
    while channel.recv_ready():
        out += channel.recv(CHUNK)
    while channel.recv_stderr_ready():
        err += channel.recv_stderr(CHUNK)
    size = len(out) + len(err)
    if size > LONGEST_OUTPUT:
        raise TooMuchOutput(f"it said more than {LONGEST_OUTPUT >> 20} MiB")
    return size > before


def left_of(deadline: float) -> float:
    """Seconds until a deadline.

    Raises:
        TimeoutError: it is over.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left
