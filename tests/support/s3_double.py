"""A small S3 over real HTTP that misbehaves as it is told: it ignores conditions, or hangs."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(slots=True)
class S3Double:
    """One bucket in memory. Path addressing."""

    honours: frozenset[str] = frozenset({"If-Match", "If-None-Match"})
    hang_in: str = ""
    """Where PUTs of whole objects stop for ever: `body` (half of it is read) or `answer`."""
    objects: dict[str, bytes] = field(default_factory=dict)
    arrived: threading.Event = field(default_factory=threading.Event)
    """Set when a PUT came to where it hangs."""
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Self:
        double = self

        class Handler(_Handler):
            store = double

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    store: S3Double
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        data = self.store.objects.get(self.path.split("?")[0])
        if data is None:
            body = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            self._answer(404, body)
        else:
            self._answer(200, data, {"ETag": _etag(data)})

    def do_PUT(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        watched = b"probe" not in self.path.encode()
        if watched and self.store.hang_in == "body":
            self.rfile.read(size // 2)
            self._hang()
        if self.headers.get("Expect") == "100-continue":
            pass  # BaseHTTPRequestHandler has answered it
        body = self.rfile.read(size)
        path = self.path.split("?")[0]
        if not self._holds(self.store.objects.get(path)):
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self.store.objects[path] = body
        if watched and self.store.hang_in == "answer":
            self._hang()
        self._answer(200, b"", {"ETag": _etag(body)})

    def do_DELETE(self) -> None:
        self.store.objects.pop(self.path.split("?")[0], None)
        self._answer(204, b"")

    def _holds(self, there: bytes | None) -> bool:
        match, none = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        if match and "If-Match" in self.store.honours and (there is None or _etag(there) != match):
            return False
        return not (none and "If-None-Match" in self.store.honours and there is not None)

    def _hang(self) -> None:
        self.store.arrived.set()
        self.rfile.read()  # until the client is gone
        self.close_connection = True
        raise ConnectionAbortedError

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'
