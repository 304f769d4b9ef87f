"""Hosts over SSH: one connection per host, own deadlines on every wait.

What was measured and shapes this file: paramiko's keepalive never notices a dead link, its default
socket costs 45 ms a command (Nagle), waiting for an exit status before reading hangs, and an exit
status of -1 says only that none came.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import random
import select
import shlex
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import paramiko

from remote.errors import AuthRefused, RemoteError, Unreachable
from remote.model import HostTarget, Result
from remote.ssh_config import Route, resolve, split_hop
from remote.ssh_trust import key_text, trusted_keys, verify, wanted_types

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CONNECT_S = 15.0
SILENCE_S = 12.0  # unacknowledged for so long: the link is dead
KEEPALIVE_S = 3  # makes the kernel notice a dead link while nothing else is sent
SESSIONS = 8  # servers allow ten by default
BACK_OFF_S = (0.5, 30.0)
CHUNK = 1 << 15


class SshTransport:
    """Runs commands over one connection, reopened when it broke. Safe to use from threads."""

    def __init__(
        self,
        target: HostTarget,
        *,
        config: Path | None = None,
        connect_s: float = CONNECT_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.target = target
        self.label = f"{target.user}@{target.address}" if target.user else target.address
        self.route: Route | None = None
        self._config = config
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._sessions = threading.BoundedSemaphore(SESSIONS)
        self._hops: list[_Hop] = []
        self._shown_key = ""
        self._failure: RemoteError | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._closed = False

    @property
    def host_key(self) -> str:
        return self._shown_key or self.target.host_key or ""

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        deadline = time.monotonic() + timeout
        if not self._sessions.acquire(timeout=timeout):
            raise self._unknown(argv, "all sessions of the connection were busy")
        try:
            return self._run(argv, input, deadline)
        finally:
            self._sessions.release()

    def close(self) -> None:
        self._closed = True
        # A connection attempt may hold the lock for seconds; it sees the mark when it is done.
        if self._lock.acquire(timeout=1):
            try:
                self._drop()
            finally:
                self._lock.release()

    # --- commands ---

    def _session(self, deadline: float) -> tuple[paramiko.Transport, paramiko.Channel]:
        """A channel; on a new connection when the old one turns out to be dead."""
        connection = self._connection(deadline)
        try:
            return connection, connection.open_session(timeout=_left(deadline))
        except paramiko.ChannelException:
            raise
        except (paramiko.SSHException, OSError, EOFError):
            # No command was sent, so trying again cannot run one twice.
            connection.join(timeout=min(_left(deadline), 1.0))
            if connection.is_active():
                raise
        connection = self._connection(deadline)
        return connection, connection.open_session(timeout=_left(deadline))

    def _run(self, argv: Sequence[str], data: bytes, deadline: float) -> Result:
        channel: paramiko.Channel | None = None
        watch: threading.Timer | None = None
        try:
            connection, channel = self._session(deadline)
            # exec_command waits for its reply without a limit; closing the channel ends the wait.
            watch = threading.Timer(_left(deadline), channel.close)
            watch.daemon = True
            watch.start()
            channel.exec_command(shlex.join(argv))
            out, err = _converse(channel, data, deadline)
            code = channel.recv_exit_status() if channel.status_event.is_set() else -1
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._unknown(argv, str(error) or type(error).__name__) from error
        finally:
            if watch is not None:
                watch.cancel()
            if channel is not None:
                channel.close()
        if code < 0:
            alive = connection.is_active()
            why = "it ended without an exit status" if alive else "the connection was lost"
            raise self._unknown(argv, why)
        return Result(argv=tuple(argv), code=code, out=out, err=err)

    def _unknown(self, argv: Sequence[str], why: str) -> Unreachable:
        name = os.path.basename(argv[0])  # noqa: PTH119 - a path of the host, not of ours
        return Unreachable(
            f"No answer from {self.label} to {name}: {why}",
            hint="whether it ran is unknown; ask the host again before anything else",
        )

    # --- the connection ---

    def _connection(self, deadline: float) -> paramiko.Transport:
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Unreachable(f"Still connecting to {self.label}", hint="nothing was sent")
        try:
            if self._hops and self._hops[-1].transport.is_active():
                return self._hops[-1].transport
            self._drop()
            if self._failure is not None and time.monotonic() < self._retry_at:
                # One stream of tries for all who wait on a dead machine.
                raise self._failure.with_traceback(None)
            try:
                self._hops = self._connect(deadline)
            except RemoteError as error:
                self._failure = error
                self._retry_at = time.monotonic() + self._pause()
                raise
            self._failure, self._failures = None, 0
            if self._closed:
                self._drop()
                raise Unreachable(f"The connection to {self.label} was closed by us")
            return self._hops[-1].transport
        finally:
            self._lock.release()

    def _connect(self, deadline: float) -> list[_Hop]:
        try:
            return self._open(time.monotonic() + min(_left(deadline), self._connect_s))
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise Unreachable(
                f"Cannot reach {self.label}: {str(error) or type(error).__name__}",
                hint="nothing was sent; check the address, the port and the network",
            ) from error

    def _pause(self) -> float:
        first, most = BACK_OFF_S
        pause: float = min(most, first * 2**self._failures)
        self._failures += 1
        return pause * random.uniform(0.8, 1.2)

    def _open(self, deadline: float) -> list[_Hop]:
        """A transport per hop; the last one is the host's."""
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        route = resolve(
            self.target.address,
            user=self.target.user,
            port=self.target.port if self.target.port != 22 else None,
            config=self._config,
        )
        hops: list[_Hop] = []
        try:
            for jump in route.jumps:
                user, host, port = split_hop(jump)
                via = resolve(host, user=user, port=port, config=self._config)
                hops.append(self._hop(via, hops, pinned=None, deadline=deadline))
            hops.append(self._hop(route, hops, pinned=self.target.host_key, deadline=deadline))
        except BaseException:
            for hop in reversed(hops):
                hop.close()
            raise
        self.route = route
        self._shown_key = key_text(hops[-1].transport.get_remote_server_key())
        return hops

    def _hop(
        self, route: Route, through: list[_Hop], *, pinned: str | None, deadline: float
    ) -> _Hop:
        sock, end = self._socket(route, through, deadline)
        transport: paramiko.Transport | None = None
        try:
            transport = paramiko.Transport(sock)
            transport.banner_timeout = transport.auth_timeout = _left(deadline)
            transport.handshake_timeout = _left(deadline)
            keys = trusted_keys(route, pinned)
            options = transport.get_security_options()
            options.key_types = wanted_types(keys, tuple(options.key_types))
            transport.start_client(timeout=_left(deadline))
            verify(self.label, transport.get_remote_server_key(), keys)
            authenticate(transport, route, self.label, lambda: _left(deadline))
            transport.set_keepalive(KEEPALIVE_S)
        except BaseException:
            if transport is not None:
                transport.close()
            sock.close()
            end()
            raise
        return _Hop(transport, end)

    def _socket(
        self, route: Route, through: list[_Hop], deadline: float
    ) -> tuple[Any, Callable[[], None]]:
        """Something to speak SSH over, and what ends it."""
        if through:
            channel = through[-1].transport.open_channel(
                "direct-tcpip",
                (route.host, route.port),
                ("127.0.0.1", 0),
                timeout=_left(deadline),
            )
            return channel, channel.close
        if route.proxy_command:
            return _proxy_socket(route.proxy_command)
        sock = socket.create_connection((route.host, route.port), timeout=_left(deadline))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere our own deadlines must do
            silence = int(self._silence_s * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence)
        return sock, sock.close

    def _drop(self) -> None:
        for hop in reversed(self._hops):
            hop.close()
        self._hops = []


class _Hop:
    """One SSH transport and what carries it."""

    def __init__(self, transport: paramiko.Transport, end: Callable[[], None]) -> None:
        self.transport = transport
        self._end = end

    def close(self) -> None:
        self.transport.close()
        self._end()


def authenticate(
    transport: paramiko.Transport, route: Route, label: str, left: Callable[[], float]
) -> None:
    """Public keys only: files first, then the agent. Says what was tried when none is let in."""
    tried: list[str] = []
    with contextlib.ExitStack() as held:
        for name, key in _keys(route, tried, held):
            transport.auth_timeout = left()
            try:
                transport.auth_publickey(route.user, key)
            except paramiko.BadAuthenticationType as error:
                tried.append(f"{name}: the server wants {', '.join(error.allowed_types)}")
            except paramiko.AuthenticationException:
                tried.append(f"{name}: refused")
            if transport.is_authenticated():
                return
            if not transport.is_active():
                break
    raise AuthRefused(
        f"{label} lets {route.user} in with none of our keys ({'; '.join(tried) or 'none found'})",
        hint="load the key into ssh-agent, or name it by IdentityFile in ~/.ssh/config",
    )


def _keys(
    route: Route, tried: list[str], held: contextlib.ExitStack
) -> list[tuple[str, paramiko.PKey]]:
    found: list[tuple[str, paramiko.PKey]] = []
    for path in route.identity_files:
        if not path.is_file():
            continue
        try:
            found.append((path.name, paramiko.PKey.from_path(path)))
        except (paramiko.PasswordRequiredException, TypeError):
            tried.append(f"{path.name}: needs its passphrase, which ssh-agent would hold")
        except (paramiko.SSHException, ValueError, OSError) as error:
            tried.append(f"{path.name}: {error}")
    public = {key.asbytes() for _, key in found}
    # An agent key is fine under IdentitiesOnly when its .pub lies beside an IdentityFile.
    allowed = public | {blob for path in route.identity_files for blob in _public_blob(path)}
    found.extend(
        (f"agent key {key.fingerprint}", key)
        for key in _agent_keys(route.agent, tried, held)
        if key.asbytes() not in public and (not route.identities_only or key.asbytes() in allowed)
    )
    return found


def _public_blob(path: Path) -> list[bytes]:
    try:
        text = path.with_name(path.name + ".pub").read_text(encoding="utf-8")
        return [base64.b64decode(text.split()[1])]
    except (OSError, ValueError, IndexError):
        return []


def _agent_keys(
    agent: str, tried: list[str], held: contextlib.ExitStack
) -> list[paramiko.AgentKey]:
    """The agent's keys; it is asked to sign with them, so it stays open as long as `held`."""
    place = os.environ.get("SSH_AUTH_SOCK", "") if agent in ("", "SSH_AUTH_SOCK") else agent
    if not place:
        return []
    if place != os.environ.get("SSH_AUTH_SOCK"):
        tried.append(f"agent {place}: only the agent of $SSH_AUTH_SOCK is asked")
        return []
    try:
        open_agent = paramiko.Agent()
        held.callback(open_agent.close)
        return list(open_agent.get_keys())
    except (paramiko.SSHException, OSError) as error:
        tried.append(f"agent: {error}")
        return []


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


def _converse(channel: paramiko.Channel, data: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Send the input and read both streams at once: any one left alone can stop the others."""
    ready = channel.fileno()
    out, err = bytearray(), bytearray()
    view = memoryview(data)
    if not data:
        channel.shutdown_write()
    while True:
        moved = False
        if view and channel.send_ready():
            view = view[channel.send(bytes(view[:CHUNK])) :]
            moved = True
            if not view:
                channel.shutdown_write()
        while channel.recv_ready():
            out += channel.recv(CHUNK)
            moved = True
        while channel.recv_stderr_ready():
            err += channel.recv_stderr(CHUNK)
            moved = True
        if moved:
            continue
        if channel.closed or (channel.eof_received and channel.status_event.is_set()):
            # What arrived between the last look and the end.
            while channel.recv_ready():
                out += channel.recv(CHUNK)
            while channel.recv_stderr_ready():
                err += channel.recv_stderr(CHUNK)
            if channel.exit_status < 0:
                _left(deadline)  # our own watch closed it: say so
            return bytes(out), bytes(err)
        left = _left(deadline)
        # The pipe does not tell of a window that opened nor of an exit status: look again soon.
        pause = 0.005 if view or channel.eof_received else 0.25
        select.select([ready], [], [], min(left, pause))
        if channel.eof_received and not channel.status_event.is_set():
            channel.status_event.wait(min(left, 0.25))


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("it took too long")
    return left
