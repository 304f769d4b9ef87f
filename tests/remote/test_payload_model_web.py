"""Ranges over HTTP: few connections, redirects remembered, TLS, proxies, servers that hang up."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import json
import os
import select
import socket
import socketserver
import ssl
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from remote.payloads import model_copy
from remote.payloads.model_sources import LISTING, Ended, Model, listed_model, open_model
from remote.payloads.model_web import NoRange, Web
from remote.payloads.records import Refused
from tests.support.hub_double import COMMIT, NAME, HubDouble

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
FILES = {"config.json": b"{}", "model.safetensors": os.urandom(40 * MIB)}


@pytest.fixture(autouse=True)
def no_proxy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def copy(hub: HubDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: int = 2) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    to = tmp_path / "to"
    words = ["--source", f"hub:{NAME}", "--shm", str(to), "--disk", str(to), "--no-shm"]
    model_copy.make(model_copy.arguments([*words, "--streams", str(streams), "--files", "1"]))
    assert {name: (to / name).read_bytes() for name in FILES} == FILES


def test_a_few_connections_and_a_redirect_a_file_serve_all_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubDouble(files=FILES, token="t") as hub:
        copy(hub, tmp_path, monkeypatch)
        assert len(hub.ranges) == 6
        assert hub.redirects <= 3  # two streams may ask for the first file at the same moment
        listing = 2
        assert hub.connections <= listing + 2 * 2  # two streams, two addresses


def test_a_remembered_redirect_that_ran_out_is_asked_for_again() -> None:
    with HubDouble(files=FILES) as hub, contextlib.closing(Web()) as web:
        url, view = f"{hub.url}/{NAME}/resolve/{COMMIT}/model.safetensors", bytearray(8)
        web.fill(url, {}, 0, memoryview(view))
        hub.signature = "s2"
        web.fill(url, {}, 100, memoryview(view))
        assert bytes(view) == FILES["model.safetensors"][100:108]
        web.fill(url, {}, 200, memoryview(view))
        assert hub.redirects == 2


def test_a_server_that_hangs_up_on_idle_connections_costs_no_try() -> None:
    with HubDouble(files=FILES, closes=True) as hub, contextlib.closing(Web()) as web:
        url = f"{hub.url}/{NAME}/resolve/{COMMIT}/model.safetensors"
        for start in range(5):
            view = bytearray(8)
            web.fill(url, {}, start, memoryview(view))
            assert bytes(view) == FILES["model.safetensors"][start : start + 8]


def test_a_redirect_to_no_web_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with HubDouble(files=FILES) as hub, contextlib.closing(Web()) as web:
        monkeypatch.setattr(HubDouble, "address", lambda *_: "file:///etc")
        url = f"http://127.0.0.1:{hub._servers[0].server_address[1]}/{NAME}/resolve/{COMMIT}/x"
        monkeypatch.setattr(HubDouble, "url", url.split("/lab")[0])
        with pytest.raises(NoRange, match="file:///etc"):
            web.fill(url, {}, 0, memoryview(bytearray(4)))


class Saying(ThreadingHTTPServer):
    """Answers as a test says; notes what it was asked for."""

    daemon_threads = True

    def __init__(self, answer: Callable[[_Saying], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Saying)
        self.answer = answer
        self.asked: list[str] = []
        self.connections = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Saying(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Saying

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.answer(self)

    def say(
        self, status: int, body: bytes = b"", *, chunked: bool = False, to: str = "", tag: str = ""
    ) -> None:
        self.send_response(status)
        for name, value in (("Location", to), ("ETag", tag)):
            if value:
                self.send_header(name, value)
        about = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body)))
        self.send_header(*about)
        self.end_headers()
        self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def test_a_redirect_within_the_hub_is_remembered_with_the_token() -> None:
    def answer(ask: _Saying) -> None:
        if ask.headers["Authorization"] != "Bearer t":
            ask.say(401)
        elif ask.path == "/old":
            ask.say(307, to="/new")
        else:
            ask.say(206, b"1234")

    with Saying(answer) as hub, contextlib.closing(Web()) as web:
        for start in (0, 4):
            web.fill(
                f"{hub.url}/old", {"Authorization": "Bearer t"}, start, memoryview(bytearray(4))
            )
        assert hub.asked == ["/old", "/new", "/new"]


def test_the_token_goes_to_no_other_place_that_the_hub_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signed_in: list[tuple[str, bool]] = []

    def elsewhere(ask: _Saying) -> None:
        signed_in.append((ask.path, "Authorization" in ask.headers))
        ask.say(404)

    def answer(ask: _Saying) -> None:
        signed_in.append((ask.path, "Authorization" in ask.headers))
        ask.say(302, to="/moved" if ask.path != "/moved" else f"{other.url}/away")

    with Saying(elsewhere) as other, Saying(answer) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "secret")
        with pytest.raises(Refused, match="404"):
            open_model("hub:a/b")
    assert signed_in == [
        ("/api/models/a/b/revision/main", True), ("/moved", True), ("/away", False)
    ]  # fmt: skip


def test_a_place_that_is_gone_is_not_led_to_for_ever() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{nobody.getsockname()[1]}/x"
        places = [gone]

        def answer(ask: _Saying) -> None:
            ask.say(302, to=places[0]) if ask.path == "/f" else ask.say(206, b"1234")

        with Saying(answer) as hub, contextlib.closing(Web()) as web:
            web._led[f"{hub.url}/f"] = gone
            with pytest.raises(ConnectionRefusedError):
                web.fill(f"{hub.url}/f", {}, 0, memoryview(bytearray(4)))
            places[0] = "/elsewhere"
            web.fill(f"{hub.url}/f", {}, 0, memoryview(bytearray(4)))
            assert hub.asked == ["/f", "/elsewhere"]


def test_idle_connections_that_the_line_lost_cost_one_wait_together() -> None:
    together, over = threading.Barrier(4), threading.Event()
    lost: list[Any] = []
    unheard = []

    def answer(ask: _Saying) -> None:
        if ask.connection in lost:
            unheard.append(ask.path)
            over.wait(60)
            ask.close_connection = True
            return
        if ask.path == "/together":
            together.wait(60)
            lost.append(ask.connection)
        ask.say(206, b"1234")

    def fill(path: str) -> None:
        web.fill(hub.url + path, {}, 0, memoryview(bytearray(4)))

    with Saying(answer) as hub, contextlib.closing(Web()) as web:
        several = [threading.Thread(target=fill, args=("/together",)) for _ in range(4)]
        for one in several:
            one.start()
        for one in several:
            one.join()
        for line in web._idle["http", hub.url[7:]]:
            line.to.sock.settimeout(0.2)
        fill("/alone")
        over.set()
        assert unheard == ["/alone"]


def test_a_redirect_with_what_no_url_may_have_is_followed() -> None:
    def answer(ask: _Saying) -> None:
        ask.say(206, b"1234") if ask.path != "/f" else ask.say(302, to="/a b/\xe9?c=%20")

    with Saying(answer) as hub, contextlib.closing(Web()) as web:
        web.fill(f"{hub.url}/f", {}, 0, memoryview(bytearray(4)))
        assert hub.asked == ["/f", "/a%20b/%E9?c=%20"]


@pytest.mark.parametrize("status", [200, 206])
def test_bodies_without_a_length_are_taken_and_leave_their_connection_open(status: int) -> None:
    with Saying(lambda ask: ask.say(status, b"1234", chunked=True)) as hub:
        web = Web()
        for _ in range(3):
            view = bytearray(4)
            web.fill(hub.url, {}, 0, memoryview(view))
            assert view == b"1234"
        web.close()
        assert hub.connections == 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("status", [200, 206])
def test_more_than_the_range_is_not_taken_for_it(status: int, chunked: bool) -> None:
    with (
        Saying(lambda ask: ask.say(status, b"123456", chunked=chunked)) as hub,
        contextlib.closing(Web()) as web,
        pytest.raises(NoRange, match=f"status {status}"),
    ):
        web.fill(hub.url, {}, 2, memoryview(bytearray(4)))


EXPIRED = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"


def signed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, end: float) -> Model:
    monkeypatch.setenv(LISTING, packed(url))
    monkeypatch.setenv("RUNBOOK_KEYS_SPAN", f"0 {end:.0f}")
    monkeypatch.setenv("RUNBOOK_JOB_DIR", str(tmp_path))
    (tmp_path / "ctl").mkdir()
    return listed_model("s3://b/m")


def packed(url: str) -> str:
    return base64.b64encode(zlib.compress(json.dumps([["f", 4, "e", "", url]]).encode())).decode()


@pytest.mark.parametrize("said", [EXPIRED, b"<Code>ExpiredToken</Code>"])
def test_a_store_that_calls_a_url_expired_is_believed_whatever_our_clock_says(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Saying(lambda ask: ask.say(403, said)) as store:
        model = signed(monkeypatch, tmp_path, store.url, time.time() + 3600)
        with contextlib.closing(model), pytest.raises(Ended, match="run out"):
            model.read(model.files[0], 0, memoryview(bytearray(4)))
        assert len(store.asked) == 1


def test_new_urls_that_come_while_an_old_one_is_refused_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(ask: _Saying) -> None:
        if ask.path == "/new":
            ask.say(206, b"1234")
            return
        values = {LISTING: packed(f"{store.url}/new")}
        handed = {"since": 0, "end": time.time() + 3600, "values": values}
        (tmp_path / "ctl/keys").write_text(json.dumps(handed))
        ask.say(403)

    with Saying(answer) as store:
        model = signed(monkeypatch, tmp_path, f"{store.url}/old", time.time() - 1)
        with contextlib.closing(model):
            model.read(model.files[0], 0, memoryview(bytearray(4)))
        assert store.asked == ["/old", "/new"]


def test_two_contents_of_an_object_are_not_put_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = ["one"]
    with Saying(lambda ask: ask.say(206, b"1234", tag=tag[0])) as store:
        model = signed(monkeypatch, tmp_path, store.url, time.time() + 3600)
        with contextlib.closing(model):
            for start in (0, 4):
                model.read(model.files[0], start, memoryview(bytearray(4)))
            tag[0] = "another"
            with pytest.raises(Refused, match="written anew"):
                model.read(model.files[0], 8, memoryview(bytearray(4)))


def test_another_refusal_of_a_signed_url_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Saying(lambda ask: ask.say(403, b"<Code>SignatureDoesNotMatch</Code>")) as store:
        model = signed(monkeypatch, tmp_path, store.url, time.time() + 3600)
        with contextlib.closing(model), pytest.raises(Refused, match="403") as refused:
            model.read(model.files[0], 0, memoryview(bytearray(4)))
        assert not isinstance(refused.value, Ended)


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side; ours trusts it, as SSL_CERT_FILE says."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a hub")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem = tmp_path / "hub.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(secret + certificate.public_bytes(serialization.Encoding.PEM))
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def test_over_tls_the_certificates_are_read_once(
    tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubDouble(files=FILES, token="t", tls=tls) as hub:
        made, read = [], ssl.create_default_context
        monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(0) or read())
        copy(hub, tmp_path, monkeypatch)
        assert len(made) == 1


class Proxy(socketserver.ThreadingTCPServer):
    """Passes on what it is asked for, both ways of asking, to those who sign in."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.asked: list[str] = []


class _Passing(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Proxy)
        while line := self.rfile.readline():
            method, target, _ = line.decode().split(" ", 2)
            head = []
            while (more := self.rfile.readline()).strip():
                head.append(more)
            self.server.asked.append(f"{method} {target.split('?')[0]}")
            pair = base64.b64encode(b"me:a b").decode()
            if f"Proxy-Authorization: Basic {pair}\r\n".encode() not in head:
                self.wfile.write(b"HTTP/1.1 407 Sign in\r\nContent-Length: 0\r\n\r\n")
            elif method == "CONNECT":
                self._through(target)
                return
            else:
                where, _, path = target.removeprefix("http://").partition("/")
                head = [one for one in head if not one.startswith((b"Proxy-", b"Connection"))]
                words = f"GET /{path} HTTP/1.1\r\n".encode() + b"".join(head)
                self._pass_on(where, words + b"Connection: close\r\n\r\n")

    def _pass_on(self, where: str, words: bytes) -> None:
        host, port = where.split(":")
        with socket.create_connection((host, int(port))) as store:
            store.sendall(words)
            while data := store.recv(1 << 16):
                self.wfile.write(data)

    def _through(self, where: str) -> None:
        host, port = where.split(":")
        with socket.create_connection((host, int(port))) as store:
            self.wfile.write(b"HTTP/1.1 200 Go on\r\n\r\n")
            ends: dict[Any, Any] = {self.connection: store, store: self.connection}
            while True:
                for side in select.select(list(ends), [], [])[0]:
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    ends[side].sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_of_the_environment_is_used_and_signed_into(
    scheme: str, proxy: Proxy, tls: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = tls if scheme == "https" else None
    with HubDouble(files=FILES, tls=secure) as hub:
        address = f"127.0.0.1:{proxy.server_address[1]}"
        monkeypatch.setenv(f"{scheme}_proxy", f"http://me:a%20b@{address}")
        copy(hub, tmp_path, monkeypatch)
        store = hub.address(1)
        wanted = f"CONNECT {store.split('//')[1]}" if secure else f"GET {store}/model.safetensors"
        assert wanted in proxy.asked
        proxy.asked.clear()
        ports = [place.rpartition(":")[2] for place in (hub.url, store)]
        for own in ("127.0.0.1", ",".join(f"127.0.0.1:{port}" for port in ports)):
            monkeypatch.setenv("no_proxy", own)
            with contextlib.closing(Web()) as web:
                url = f"{hub.url}/{NAME}/resolve/{COMMIT}/config.json"
                web.fill(url, {}, 0, memoryview(bytearray(2)))
            assert not proxy.asked
