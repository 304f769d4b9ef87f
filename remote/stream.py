"""A command on a host whose input and output flow at the same time: lines of JSON, and blocks."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from typing import TYPE_CHECKING, Any, Self

from remote.errors import RemoteError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from remote.transport import Pipe

BUFFER = 1 << 18


class Stream:
    """Speaks with one command: a thread sends what there is to send, the caller listens."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._in = io.BufferedReader(_Raw(pipe), BUFFER)
        self._sender: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._pipe.abort()  # what the thread is sending ends with it
        if self._sender is not None:
            self._sender.join()

    def begin(self, request: bytes, mark: str) -> None:
        """Sends the request, and reads over what a login says before our program does."""
        self._pipe.write(request)
        wanted = mark.encode()
        while not self._line().rstrip(b"\n").endswith(wanted):
            pass

    def feed(self, pieces: Generator[bytes, None, None]) -> None:
        """Sends all pieces, beside whatever the caller does."""
        self._sender = threading.Thread(target=self._feed, args=(pieces,), daemon=True)
        self._sender.start()

    def _feed(self, pieces: Generator[bytes, None, None]) -> None:
        try:
            with contextlib.closing(pieces):
                for piece in pieces:
                    self._pipe.write(piece)
        except BaseException as error:  # noqa: BLE001 (raised where the caller listens)
            self._failure = error
            with contextlib.suppress(Unreachable):
                self._pipe.end()  # the program there stops listening, and answers

    def next(self) -> dict[str, Any]:
        """The next line.

        Raises:
            Unreachable: the stream was cut.
        """
        try:
            said: dict[str, Any] = json.loads(self._line())
        except Unreachable:
            self._raise_ours()
            raise
        except ValueError as error:
            raise RemoteError("what came is not what our program says") from error
        if not said.get("ok", True):
            self._raise_ours()
        return said

    def _raise_ours(self) -> None:
        """The host knows only that no more came; why, the sending thread knows."""
        if self._failure is not None and not isinstance(self._failure, Unreachable):
            raise self._failure

    def block(self, size: int) -> bytes:
        """So many bytes."""
        data = self._in.read(size)
        if len(data) != size:
            raise self._pipe.cut("the stream ended within a block")
        return data

    def _line(self) -> bytes:
        line = self._in.readline()
        if not line.endswith(b"\n"):
            raise self._pipe.cut("the stream ended before its answer")
        return line


class _Raw(io.RawIOBase):
    """What the command says, for Python's own buffering."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._pipe.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
