"""An S3 server for benchmarks: objects in memory, and as little work of its own as can be.

What is measured against it is the client. It checks no signature; a body is held against its
SHA-256 where the client sends one only with `proves`. ETags are CRC-32s: an MD5 would cost it more
than all else. A line that all streams share may limit it. Whole and ranged reads, writes, heads,
removals, and listings of a thousand a page.
"""

from __future__ import annotations

import bisect
import hashlib
import multiprocessing
import socket
import threading
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.line import Line

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = 1000
DATE = "Mon, 30 Nov 2026 00:00:00 GMT"


class Sink:
    """The objects, and one thread for each connection."""

    def __init__(self, *, proves: bool = False, rate: float = 0.0) -> None:
        self._proves = proves
        self._line = Line(rate)
        self._objects: dict[str, tuple[memoryview, str, str]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]

    def fill(self, bucket: str, count: int) -> None:
        """With small objects, for listings."""
        for number in range(count):
            body = str(number).encode()
            key = f"{bucket}/rows/{number // 1000:04}/{number:07}.json"
            self._objects[key] = memoryview(body), f"{zlib.crc32(body):032x}", ""

    def serve(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._follow, args=(connection,), daemon=True).start()

    def _follow(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        try:
            while line := reader.readline():
                verb, target, _ = line.decode().split(" ")
                headers = {}
                while (line := reader.readline()) != b"\r\n":
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                if "expect" in headers:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = memoryview(bytearray(int(headers.get("content-length", 0))))
                for piece in self._line.pieces(body):
                    got = 0
                    while got < len(piece):
                        got += reader.readinto(piece[got:])
                self._answer(connection, verb, target, headers, body)
        except (ConnectionError, ValueError):
            pass
        finally:
            connection.close()

    def _answer(
        self, connection: socket.socket, verb: str, target: str, headers: Mapping[str, str],
        body: memoryview,
    ) -> None:  # fmt: skip
        address = urlsplit(target)
        key = unquote(address.path)[1:]
        if verb == "PUT" and "/" in key.rstrip("/"):
            status, about, data = self._put(key, headers, body)
        elif verb in ("GET", "HEAD") and key in self._objects:
            status, about, data = self._get(key, headers.get("range", ""))
        elif verb == "GET" and "/" not in key.rstrip("/"):
            query = parse_qs(address.query, keep_blank_values=True)
            status, about, data = "200 OK", "", self._listing(key.rstrip("/"), query)
        elif verb in ("PUT", "HEAD") and "/" not in key.rstrip("/"):
            status, about, data = "200 OK", "", memoryview(b"")
        elif verb == "DELETE":
            self._objects.pop(key, None)
            status, about, data = "204 No Content", "", memoryview(b"")
        else:
            status, about = "404 Not Found", ""
            data = memoryview(b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n{about}\r\n"
        connection.sendall(head.encode())
        if verb != "HEAD":
            for piece in self._line.pieces(data):
                connection.sendall(piece)

    def _put(
        self, key: str, headers: Mapping[str, str], body: memoryview
    ) -> tuple[str, str, memoryview]:
        claimed = headers.get("x-amz-content-sha256", "")
        if self._proves and len(claimed) == 64 and hashlib.sha256(body).hexdigest() != claimed:
            error = b"<Error><Code>XAmzContentSHA256Mismatch</Code></Error>"
            return "400 Bad Request", "", memoryview(error)
        etag = f"{zlib.crc32(body):032x}"
        self._objects[key] = body, etag, headers.get("x-amz-meta-sha256", "")
        return "200 OK", f'ETag: "{etag}"\r\n', memoryview(b"")

    def _get(self, key: str, asked: str) -> tuple[str, str, memoryview]:
        body, etag, digest = self._objects[key]
        about = f'ETag: "{etag}"\r\nLast-Modified: {DATE}\r\nAccept-Ranges: bytes\r\n'
        about += f"x-amz-meta-sha256: {digest}\r\n" if digest else ""
        if not asked:
            return "200 OK", about, body
        start, _, end = asked.removeprefix("bytes=").partition("-")
        part = body[int(start) : int(end) + 1 if end else None]
        span = f"bytes {start}-{int(start) + len(part) - 1}/{len(body)}"
        return "206 Partial Content", f"{about}Content-Range: {span}\r\n", part

    def _listing(self, bucket: str, query: Mapping[str, list[str]]) -> memoryview:
        prefix = f"{bucket}/{query.get('prefix', [''])[0]}"
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        names = sorted(self._objects)
        at = bisect.bisect_right(names, f"{bucket}/{after}") if after else 0
        at = max(at, bisect.bisect_left(names, prefix))
        page = [name for name in names[at : at + PAGE] if name.startswith(prefix)]
        more = len(page) == PAGE and names[at + PAGE : at + PAGE + 1] != []
        rows = []
        for name in page:
            body, etag, _ = self._objects[name]
            rows.append(
                f"<Contents><Key>{escape(name[len(bucket) + 1 :])}</Key><Size>{len(body)}</Size>"
                f'<LastModified>2026-11-30T00:00:00.000Z</LastModified><ETag>"{etag}"</ETag>'
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        token = escape(page[-1][len(bucket) + 1 :]) if more else ""
        text = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount><MaxKeys>{PAGE}</MaxKeys>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>"
            + (f"<NextContinuationToken>{token}</NextContinuationToken>" if more else "")
            + "".join(rows) + "</ListBucketResult>"
        )  # fmt: skip
        return memoryview(text.encode())


def _run(port: Any, proves: bool, objects: int, rate: float) -> None:
    sink = Sink(proves=proves, rate=rate)
    sink.fill("bench", objects)
    port.send(sink.port)
    sink.serve()


def start(*, proves: bool = False, objects: int = 0, rate: float = 0.0) -> tuple[Any, str]:
    """In a process of its own, with so many objects below s3://bench/rows, behind a line of so many
    bytes a second; it, and its address."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(there, proves, objects, rate), daemon=True
    )
    process.start()
    return process, f"http://127.0.0.1:{here.recv()}"


if __name__ == "__main__":
    sink = Sink()
    print(f"http://127.0.0.1:{sink.port}", flush=True)
    sink.serve()
