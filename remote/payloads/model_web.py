"""Ranges of files over HTTP, on connections that stay open.

A model of 54 GB is 6,500 ranges. With a connection, a redirect and a set of trusted certificates
for each, most of the time would go there, and a hub would count every one. So connections are used
again, and where a redirect led is remembered until it refuses. Proxies are those of the
environment. Standard library only, Python 3.8 or later: it goes to hosts with `model_copy`.
"""

from __future__ import annotations

import base64
import http.client
import io
import ssl
import string
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

TIMEOUT_S = 60
REDIRECTS = 5
SIGN_IN = "Authorization"
Url = urllib.parse.SplitResult


class NoRange(Exception):
    """The server sent something else than the range that was asked for."""


class _Line(NamedTuple):
    """A connection, and what a proxy wants before each path and in each request's head."""

    to: http.client.HTTPConnection
    prefix: str = ""
    head: Mapping[str, str] = {}


class Web:
    """Fills buffers from URLs; for many threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: Dict[Tuple[str, str], List[_Line]] = {}
        self._led: Dict[str, str] = {}
        self._trusted: Optional[ssl.SSLContext] = None

    def close(self) -> None:
        """Nothing stays open; of use again afterwards."""
        for place in list(self._idle):
            self._hang_up(place)

    def _hang_up(self, place: Tuple[str, str]) -> None:
        with self._lock:
            lines = self._idle.pop(place, [])
        for line in lines:
            line.to.close()

    def fill(self, url: str, head: Mapping[str, str], start: int, view: memoryview) -> str:
        """Bytes from `start` on, as many as the view holds; the ETag of what they are of.

        Raises:
            urllib.error.HTTPError: the status of the answer is an error.
            NoRange: the server sends no ranges.
            OSError, http.client.HTTPException, EOFError: no answer came, or it broke off.
        """
        asked = dict(head, Range="bytes=%d-%d" % (start, start + len(view) - 1))
        led = self._led.get(url)
        if led is not None:
            try:
                return self._read(led, url, asked, view)[1]
            except urllib.error.HTTPError:  # signed for a while, as stores' addresses are
                self._led.pop(url, None)
            except (OSError, EOFError, http.client.HTTPException):
                self._led.pop(url, None)  # the next try may be led to another place
                raise
        found, tag = self._read(url, url, asked, view)
        if found != url:
            self._led[url] = found
        return tag

    def _read(
        self, at: str, home: str, asked: Mapping[str, str], view: memoryview
    ) -> Tuple[str, str]:
        """Follows redirects; the URL that had it, and its ETag. Who signs in does so at home."""
        for _ in range(REDIRECTS + 1):
            parts = urllib.parse.urlsplit(at)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise NoRange("it leads to %s" % at)
            away = parts[:2] != urllib.parse.urlsplit(home)[:2]
            line, answer = self._ask(parts, _elsewhere(asked) if away else asked)
            try:
                if answer.status in (301, 302, 303, 307, 308):
                    answer.read()
                    to = answer.headers.get("Location", "")
                    # Some send what no URL may have.
                    to = urllib.parse.quote(to, string.punctuation, "iso-8859-1")
                    at = urllib.parse.urljoin(at, to)
                    continue
                _take(at, answer, view)
                return at, answer.headers.get("ETag", "")
            finally:
                self._put_back(parts, line, whole=answer.isclosed())
        raise NoRange("more than %d redirects" % REDIRECTS)

    def _ask(
        self, parts: Url, head: Mapping[str, str]
    ) -> Tuple[_Line, http.client.HTTPResponse]:  # fmt: skip
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        while True:
            with self._lock:
                idle = self._idle.get(parts[:2])
                old = idle.pop() if idle else None
            line = old or self._open(parts)
            try:
                line.to.request("GET", line.prefix + target, headers={**head, **line.head})
                return line, line.to.getresponse()
            except (OSError, http.client.HTTPException):
                line.to.close()
                if old is None:
                    raise
                self._hang_up(parts[:2])  # what ended an old one has ended the others: a new one

    def _put_back(self, parts: Url, line: _Line, *, whole: bool) -> None:
        if not whole:  # what is left of it would be taken for the next answer
            line.to.close()
            return
        with self._lock:
            self._idle.setdefault(parts[:2], []).append(line)

    def _open(self, parts: Url) -> _Line:
        proxy = urllib.request.getproxies().get(parts.scheme, "")
        if not proxy or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
            return _Line(self._secure(parts) if parts.scheme == "https" else _plain(parts))
        through = urllib.parse.urlsplit(proxy if "//" in proxy else "http://" + proxy)
        if parts.scheme == "http":
            return _Line(_plain(through), "http://" + parts.netloc, _signed_in(through))
        line = _Line(self._secure(through))
        line.to.set_tunnel(parts.hostname or "", parts.port or 443, _signed_in(through))
        return line

    def _secure(self, parts: Url) -> http.client.HTTPSConnection:
        with self._lock:  # to read the trusted certificates takes longer than many a range
            self._trusted = self._trusted or ssl.create_default_context()
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=self._trusted
        )


def _plain(parts: Url) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)


def _take(url: str, answer: http.client.HTTPResponse, view: memoryview) -> None:
    """Reads an answer into the view."""
    if answer.status >= 400:
        said = io.BytesIO(answer.read())
        raise urllib.error.HTTPError(url, answer.status, answer.reason, answer.headers, said)
    whole = answer.status == 200 and answer.length in (None, len(view))
    if answer.status != 206 and not whole:
        raise NoRange("status %d" % answer.status)
    while view:
        got = answer.readinto(view)
        if not got:
            raise EOFError("the connection ended early")
        view = view[got:]
    if not answer.isclosed() and answer.read(1):  # the end of a chunked one still has to come
        raise NoRange("status %d, and more than the range" % answer.status)


def _elsewhere(head: Mapping[str, str]) -> Dict[str, str]:
    """A hub's token is for the hub, not for the store that it sends us to."""
    return {name: value for name, value in head.items() if name != SIGN_IN}


def _signed_in(proxy: Url) -> Dict[str, str]:
    if proxy.username is None:
        return {}
    pair = "%s:%s" % tuple(map(urllib.parse.unquote, (proxy.username, proxy.password or "")))
    return {"Proxy-" + SIGN_IN: "Basic " + base64.b64encode(pair.encode()).decode()}
