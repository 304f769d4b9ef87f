"""A TCP link that a test can freeze, slow down or cut: what lies between a client and a server."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Literal

Way = Literal["up", "down"]


class Link:
    """Forwards to a port. Frozen, it still accepts and swallows: silence without a reset."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", delay_s: float = 0) -> None:
        self.target = port
        self.host = host
        self.delay_s = delay_s
        self.accepted = 0
        self.passed: dict[Way, int] = {"up": 0, "down": 0}
        self.flowing = threading.Event()
        self.flowing.set()
        self.broke = threading.Event()
        self._break_at: tuple[Way, int, str] | None = None
        self._deciding = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def break_after(self, way: Way, count: int, *, how: Literal["cut", "freeze"] = "cut") -> None:
        """Let so many more bytes of one direction pass, then break."""
        self.broke.clear()
        self.passed = {"up": 0, "down": 0}
        self._break_at = (way, count, how)

    def mend(self) -> None:
        """Nothing is broken from now on."""
        with self._deciding:
            self._break_at = None
            self.thaw()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                server = socket.create_connection((self.host, self.target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            self._pump("up", client, server)
            self._pump("down", server, client)

    def _pump(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        pipe: queue.Queue[tuple[float, bytes]] = queue.Queue()
        threading.Thread(target=self._read, args=(source, pipe), daemon=True).start()
        threading.Thread(target=self._write, args=(way, pipe, source, sink), daemon=True).start()

    def _read(self, source: socket.socket, pipe: queue.Queue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            data = b""
            with suppress(OSError):
                data = source.recv(1 << 16)
            pipe.put((time.monotonic() + self.delay_s, data))

    def _write(
        self,
        way: Way,
        pipe: queue.Queue[tuple[float, bytes]],
        source: socket.socket,
        sink: socket.socket,
    ) -> None:
        with suppress(OSError):
            while True:
                due, data = pipe.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                self.flowing.wait()
                with self._deciding:  # who has the last byte may mend at once
                    data, how = self._allowed(way, data)
                    if how == "freeze":
                        self.freeze()
                sink.sendall(data)
                if how == "cut":
                    self.cut()
                if how:
                    self.broke.set()
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _allowed(self, way: Way, data: bytes) -> tuple[bytes, str]:
        """What may still pass, and what happens after it."""
        before = self.passed[way]
        self.passed[way] += len(data)
        if self._break_at is None or self._break_at[0] != way:
            return data, ""
        _, count, how = self._break_at
        if before + len(data) < count:
            return data, ""
        self._break_at = None
        return data[: count - before], how

    def freeze(self) -> None:
        self.flowing.clear()

    def thaw(self) -> None:
        self.flowing.set()

    def cut(self) -> None:
        for end in list(self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.thaw()
