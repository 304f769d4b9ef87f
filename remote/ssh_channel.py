"""One command on one channel: both streams at once, within a deadline, never without bounds."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from typing import TYPE_CHECKING

import paramiko

from remote.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 15
IDLE_S = 120.0
"""Nothing moved for so long, neither way. A dead link is noticed long before, by its pulse."""
LONGEST_OUTPUT = 256 << 20
"""More than any answer of ours; a command that says more is cut off, not kept in memory."""


class TooMuchOutput(OSError):
    """A command said more than is kept."""


class Sessions:
    """Turns on one connection, of which a server may allow fewer than we think."""

    def __init__(self, limit: int) -> None:
        self.opening = threading.Lock()
        """Held while a session is opened: who is refused knows how many others there are."""
        self._turns = threading.BoundedSemaphore(limit)
        self._open = 0
        self._ended = threading.Condition()

    @contextlib.contextmanager
    def turn(self, timeout: float) -> Iterator[bool]:
        """Waits for a turn; whether it came in time."""
        got = self._turns.acquire(timeout=timeout)
        try:
            yield got
        finally:
            if got:
                self._turns.release()

    def opened(self) -> None:
        with self._ended:
            self._open += 1

    def ended(self) -> None:
        with self._ended:
            self._open -= 1
            self._ended.notify_all()

    def wait_for_one(self, timeout: float) -> bool:
        """Waits until one of the open sessions ended. False: none is open, or none ended."""
        with self._ended:
            before = self._open
            return before > 0 and self._ended.wait_for(lambda: self._open < before, timeout)


def converse(channel: paramiko.Channel, data: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Send the input and read both streams at once: any one left alone can stop the others."""
    ready = channel.fileno()
    out, err = bytearray(), bytearray()
    view = memoryview(data)
    if not data:
        channel.shutdown_write()
    while True:
        moved = False
        if view and (channel.send_ready() or channel.closed):
            view = view[_send(channel, view) :]
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


def _send(channel: paramiko.Channel, view: memoryview) -> int:
    """Bytes sent; all of them when nobody reads any more: the command ended, and said how."""
    try:
        return channel.send(bytes(view[:CHUNK]))
    except OSError:
        if not channel.closed:
            raise
        return len(view)


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


class ChannelPipe:
    """The input and output of the command on a channel."""

    def __init__(self, channel: paramiko.Channel, label: str) -> None:
        self._channel = channel
        self._label = label
        self._moved = time.monotonic()
        channel.settimeout(IDLE_S / 8)

    def write(self, data: bytes) -> None:
        sent = 0
        while sent < len(data):
            try:
                sent += self._channel.send(data[sent : sent + CHUNK])
                self._moved = time.monotonic()
            except TimeoutError:
                self._wait()
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise self.cut(str(error)) from error

    def end(self) -> None:
        try:
            self._channel.shutdown_write()
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self.cut(str(error)) from error

    def read(self, size: int) -> bytes:
        while True:
            try:
                data = self._channel.recv(size)
            except TimeoutError:
                self._wait()
                continue
            self._moved = time.monotonic()
            return data

    def abort(self) -> None:
        close_quietly(self._channel)

    def cut(self, why: str) -> Unreachable:
        said = b""
        while self._channel.recv_stderr_ready():
            said += self._channel.recv_stderr(CHUNK)
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return Unreachable(f"{self._label}: {last or why or 'the connection was lost'}")

    def _wait(self) -> None:
        if time.monotonic() - self._moved > IDLE_S:
            raise self.cut(f"nothing moved for {IDLE_S:.0f} s")


def close_quietly(thing: paramiko.Channel | paramiko.Transport) -> None:
    """Close what may be dead already: closing sends a message."""
    with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
        thing.close()


def left_of(deadline: float) -> float:
    """Seconds until a deadline.

    Raises:
        TimeoutError: it is over.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left
