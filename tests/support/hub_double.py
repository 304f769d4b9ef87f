"""A model hub over real HTTP: its API, and files that lie behind a redirect to another address.

It can be slow as far stores are: a delay before each answer, and a limited rate of each stream.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from tests.support.line import CHUNK, Line

if TYPE_CHECKING:
    import ssl

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "lab/tiny-model"


@dataclass(slots=True)
class HubDouble:
    """One model at one commit."""

    files: dict[str, bytes]
    token: str = ""
    latency_s: float = 0.0
    stream_rate: float = 0.0
    """Bytes a second of one stream; 0 is as fast as it goes."""
    line: Line = field(default_factory=Line)
    stands_at: int = 0
    """Bodies stand still once so many of their bytes were sent in all; 0 is never."""
    broken: int = 0
    """So many bodies still break off in their middle."""
    closes: bool = False
    """Each connection ends after its answer, and nobody is told."""
    tls: ssl.SSLContext | None = None
    ranges: list[tuple[str, int]] = field(default_factory=list)
    """What was asked for: a name and where its range began."""
    redirects: int = 0
    connections: int = 0
    signature: str = "s1"
    """Of the addresses in redirects; others are refused."""
    _sent: int = 0
    _servers: list[ThreadingHTTPServer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        double = self

        class Handler(_Handler):
            hub = double

        for _ in ("hub", "store"):
            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            server.daemon_threads = True
            if self.tls:
                server.socket = self.tls.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self._servers.append(server)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def address(self, number: int = 0) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://127.0.0.1:{self._servers[number].server_address[1]}"

    @property
    def url(self) -> str:
        return self.address(0)

    def wait_to_go_on(self, size: int) -> None:
        """Until bodies may hold so many bytes more."""
        with self._lock:
            self._sent += size
        while self.stands_at and self._sent > self.stands_at:
            time.sleep(0.02)

    def breaks(self) -> bool:
        with self._lock:
            self.broken -= self.broken > 0
            return self.broken >= 0 and self.broken != 0


class _Handler(BaseHTTPRequestHandler):
    hub: HubDouble
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.hub.connections += 1

    def do_GET(self) -> None:
        hub = self.hub
        time.sleep(hub.latency_s)
        self._serve()
        self.close_connection = self.close_connection or hub.closes

    def _serve(self) -> None:
        hub = self.hub
        at_hub = self.headers["Host"] == hub.url.split("//")[1]
        said = self.headers.get("Authorization", "")
        if at_hub and hub.token and said != f"Bearer {hub.token}":
            self._answer(401, b"")
        elif not at_hub and said:
            self._answer(400, b"only one way to sign in is allowed")
        elif self.path.startswith(f"/api/models/{NAME}/revision/main"):
            self._answer(200, json.dumps({"sha": COMMIT}).encode())
        elif self.path.startswith(f"/api/models/{NAME}/tree/{COMMIT}"):
            self._tree()
        elif at_hub and self.path.startswith(f"/{NAME}/resolve/{COMMIT}/"):
            name = self.path.split(f"{COMMIT}/", 1)[1]
            hub.redirects += 1
            self._answer(302, b"", {"Location": f"{hub.address(1)}/{name}?sig={hub.signature}"})
        elif not at_hub and not self.path.endswith(f"?sig={hub.signature}"):
            self._answer(403, b"signed for a time that is over")
        elif not at_hub and (name := self.path[1:].split("?")[0]) in hub.files:
            self._body(name)
        else:
            self._answer(404, b"")

    def _tree(self) -> None:
        """In pages of two, as large answers are."""
        names = sorted(self.hub.files)
        start = int((re.search(r"cursor=(\d+)", self.path) or [0, 0])[1])
        entries = []
        for name in names[start : start + 2]:
            data = self.hub.files[name]
            entry = {"type": "file", "path": name, "size": len(data), "oid": "b" * 40}
            if name.endswith(".safetensors"):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
            entries.append(entry)
        more = {}
        if start + 2 < len(names):
            path = self.path.split("&cursor")[0]
            more = {"Link": f'<{self.hub.url}{path}&cursor={start + 2}>; rel="next"'}
        self._answer(200, json.dumps(entries).encode(), more)

    def _body(self, name: str) -> None:
        data, asked = self.hub.files[name], self.headers.get("Range", "")
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        start, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(data))
        self.hub.ranges.append((name, start))
        part = memoryview(data)[start:end]
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.hub.breaks():
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return
        began, sent = time.monotonic(), 0
        while sent < len(part):
            self.hub.wait_to_go_on(min(CHUNK, len(part) - sent))
            self.hub.line.wait(min(CHUNK, len(part) - sent))
            self.wfile.write(part[sent : sent + CHUNK])
            sent += CHUNK
            if self.hub.stream_rate:
                time.sleep(max(0.0, began + sent / self.hub.stream_rate - time.monotonic()))

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""
