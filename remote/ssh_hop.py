"""One hop of a route: the socket, the SSH transport over it, and the pulse that notices its death.

What was measured and shapes this file: the library's own keepalive never notices a dead link, its
default socket costs 45 ms a command (Nagle). The kernel's TCP_USER_TIMEOUT sees only the first
hop, and exists on Linux alone; so the last hop is asked for an answer, and closed without one.
AES-GCM is twice as fast as the CTR and MAC that the library prefers. When the library itself begins
to change keys and a command ends in the same moment, the connection stands still for good; so it
waits as long as OpenSSH does before it begins.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import paramiko

from remote.errors import AuthRefused, HostKeyUnknown, RemoteError
from remote.ssh_channel import close_quietly, left_of
from remote.ssh_keys import authenticate
from remote.ssh_trust import trusted_keys, verify, wanted_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote.ssh_config import Route
    from remote.ssh_keys import Keyring

PULSE_S = 3.0
WINDOW = 16 << 20  # bytes on their way to us: 160 MB/s at 100 ms
REKEY_BYTES = 1 << 35  # of the 2^36 that 2^32 blocks of a cipher are good for (RFC 4344, 3.2)


class Hop:
    """One SSH transport and what carries it."""

    def __init__(self, transport: paramiko.Transport, end: Callable[[], None]) -> None:
        self.transport = transport
        self._end = end
        self._ended = threading.Event()

    def keep_alive(self, *, silence_s: float) -> None:
        """Ask for an answer every few seconds, and close what gave none for `silence_s`."""
        threading.Thread(target=self._pulse, args=(silence_s,), daemon=True).start()

    def _pulse(self, silence_s: float) -> None:
        while not self._ended.wait(min(PULSE_S, silence_s / 2)) and self.transport.is_active():
            watch = threading.Timer(silence_s, self.close)
            watch.daemon = True
            watch.start()
            try:
                # Any answer will do; the usual one is "no such request".
                self.transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, OSError, EOFError):
                return
            finally:
                watch.cancel()

    def close(self) -> None:
        self._ended.set()
        # The socket first: closing a transport sends, and would wait on a link that takes nothing.
        self._end()
        close_quietly(self.transport)


def open_hop(
    route: Route,
    through: list[Hop],
    *,
    label: str,
    last: bool,
    pinned: str | None,
    deadline: float,
    connect_s: float,
    silence_s: float,
    keyring: Keyring,
) -> Hop:
    """Connect, compare the host's key, and be let in; all before the deadline.

    A slow link is given that long; one that says nothing at first, only `connect_s`.
    """
    sock, end = _socket(
        route, through, timeout=min(left_of(deadline), connect_s), silence_s=silence_s
    )
    transport: paramiko.Transport | None = None
    # The library measures its waits by the wall clock, which somebody may set back by hours.
    watch = threading.Timer(left_of(deadline), end)
    watch.daemon = True
    watch.start()
    try:
        transport = paramiko.Transport(sock, default_window_size=WINDOW)
        transport.banner_timeout = min(left_of(deadline), connect_s)
        transport.handshake_timeout = left_of(deadline)
        keys = trusted_keys(route, pinned)
        options = transport.get_security_options()
        options.key_types = wanted_types(keys, tuple(options.key_types))
        options.ciphers = sorted(options.ciphers, key=lambda name: "-gcm@" not in name)
        transport.packetizer.REKEY_BYTES = REKEY_BYTES
        transport.start_client(timeout=left_of(deadline))
        try:
            verify(label, transport.get_remote_server_key(), keys)
        except HostKeyUnknown as error:
            if last:
                raise
            raise AuthRefused(
                error.message,
                hint=f"compare the fingerprint, then connect once: `ssh {route.host}`",
            ) from error
        authenticate(transport, route, label, lambda: left_of(deadline), keyring)
    except BaseException:
        end()
        if transport is not None:
            close_quietly(transport)
        raise
    finally:
        watch.cancel()
    return Hop(transport, end)


def _socket(
    route: Route, through: list[Hop], *, timeout: float, silence_s: float
) -> tuple[Any, Callable[[], None]]:
    """Something to speak SSH over, and what ends it."""
    if through:
        channel = through[-1].transport.open_channel(
            "direct-tcpip", (route.host, route.port), ("127.0.0.1", 0), timeout=timeout
        )
        return channel, functools.partial(close_quietly, channel)
    if route.proxy_command:
        return _proxy_socket(route.proxy_command)
    sock = _dial(route.host, route.port, time.monotonic() + timeout)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the pulse must do
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))

    def end() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    return sock, end


def _dial(host: str, port: int, deadline: float) -> socket.socket:
    """A connection to any of its addresses; each gets its share of the time."""
    found: list[Any] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.append(error)

    # The resolver has no deadline of its own, and a name server may be behind the dead link.
    looking = threading.Thread(target=look_up, daemon=True)
    looking.start()
    looking.join(left_of(deadline))
    if not found:
        raise TimeoutError(f"the name {host} was not resolved in time")
    failure = OSError("it has no address")
    for number, row in enumerate(found):
        if isinstance(row, OSError):
            raise row
        family, kind, protocol, _, address = row
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left_of(deadline) / (len(found) - number))
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure


def _proxy_socket(command: str) -> tuple[socket.socket, Callable[[], None]]:
    """A ProxyCommand on the far end of a socket pair, as ssh runs it."""
    ours, theirs = socket.socketpair()
    try:
        child = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        ours.close()
        raise RemoteError(f"Cannot run the ProxyCommand: {error}") from error
    finally:
        theirs.close()

    def end() -> None:
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    return ours, end
