"""Ranges over HTTP: few connections, redirects remembered, TLS, proxies, servers that hang up."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import ipaddress
import os
import select
import socket
import socketserver
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from remote.payloads import model_copy
from remote.payloads.model_web import NoRange, Web
from tests.support.hub_double import COMMIT, NAME, HubDouble

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with contextlib.closing(Web()) as web:
            url = f"{hub.url}/{NAME}/resolve/{COMMIT}/config.json"
            web.fill(url, {}, 0, memoryview(bytearray(2)))
        assert not proxy.asked
