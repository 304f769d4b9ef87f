"""Hosts over SSH: one connection per host, own deadlines on every wait.

What was measured and shapes this file: waiting for an exit status before reading hangs, and an exit
status of -1 says only that none came.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import threading
import time
from typing import TYPE_CHECKING, TypeVar

import paramiko

from remote.breaker import Breaker
from remote.errors import RemoteError, Unreachable
from remote.identity_file import identity_of
from remote.model import HostTarget, Result
from remote.ssh_channel import ChannelPipe, Sessions, close_quietly, converse, left_of
from remote.ssh_config import Route, chain
from remote.ssh_hop import Hop, open_hop
from remote.ssh_keys import KEYRING, Keyring, PassphraseNeeded
from remote.ssh_trust import key_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

CONNECT_S = 10.0  # until a machine answers at all
LOGIN_S = 75.0  # through every hop; a link of 5 s latency needs half of it
SILENCE_S = 8.0  # nothing came for so long, though we asked: the link is dead
CLOSING_S = 1.0
AT_ONCE_S = 2.0
SESSIONS = 8  # servers allow ten by default
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0

T = TypeVar("T")


class SshTransport:
    """Runs commands over one connection, reopened when it broke. Safe to use from threads."""

    def __init__(
        self,
        target: HostTarget,
        *,
        config: Path | None = None,
        connect_s: float = CONNECT_S,
        silence_s: float = SILENCE_S,
        keyring: Keyring = KEYRING,
        bulky: bool = False,
    ) -> None:
        self.target = target
        port = f":{target.port}" if target.port not in {None, 22} else ""
        address = f"[{target.address}]" if port and ":" in target.address else target.address
        self.label = f"{target.user}@{address}{port}" if target.user else f"{address}{port}"
        self.route: Route | None = None
        self.breaker = Breaker(first_s=FIRST_PAUSE_S, most_s=LONGEST_PAUSE_S)
        self._config = config
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._keyring = keyring
        self._bulky = bulky
        self._lock = threading.Lock()
        self._sessions = Sessions(SESSIONS)
        self._hops: list[Hop] = []
        self._shown_key = ""
        self._failure: RemoteError | None = None
        self._closed = False
        self._bulk: SshTransport | None = None
        self._making = threading.Lock()

    @property
    def host_key(self) -> str:
        return self._shown_key or self.target.host_key or ""

    @property
    def way(self) -> str:
        """What OpenSSH's configuration made of the address, for whoever takes over."""
        if self.route is None:
            return ""
        route = self.route
        jumps = f" through {', '.join(route.jumps)}" if route.jumps else ""
        key = f" with {self.target.identity_file}" if self.target.identity_file else ""
        return f"{route.user}@{route.host} port {route.port}{jumps}{key} (by {route.source})"

    def bulk(self) -> SshTransport:
        """A second connection, so that no poll waits behind a transfer. Closed with this one."""
        with self._making:
            if self._bulk is None:
                self._bulk = SshTransport(
                    self.target,
                    config=self._config,
                    connect_s=self._connect_s,
                    silence_s=self._silence_s,
                    keyring=self._keyring,
                    bulky=True,
                )
                self._bulk.breaker = self.breaker
            return self._bulk

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        return self._unlocked(lambda: self._run(argv, input, timeout))

    def stream_to(self, port: int, *, timeout: float) -> paramiko.Channel:
        """Both ways to a port on the host's loopback. The caller closes it.

        Raises:
            RemoteError: nothing answers there, or the host lets nobody through.
            Unreachable: the host does not answer.
        """
        return self._unlocked(lambda: self._stream_to(port, time.monotonic() + timeout))

    def _stream_to(self, port: int, deadline: float) -> paramiko.Channel:
        for last in (False, True):
            connection = self._connection(deadline)
            try:
                return connection.open_channel(
                    "direct-tcpip",
                    ("127.0.0.1", port),
                    ("127.0.0.1", 0),
                    timeout=left_of(deadline),
                )
            except paramiko.ChannelException as error:
                raise RemoteError(
                    f"Nothing answers on port {port} of {self.label}: {error.text}",
                    hint="is the server up, and does sshd allow TCP forwarding?",
                ) from error
            except (paramiko.SSHException, OSError, EOFError) as error:
                connection.join(timeout=1)
                if last or connection.is_active():
                    raise self._unknown([f"port {port}"], str(error)) from error
        raise AssertionError

    def close(self) -> None:
        self._closed = True
        if self._bulk is not None:
            self._bulk.close()
        # A connection attempt may hold the lock for seconds; it sees the mark when it is done.
        if self._lock.acquire(timeout=1):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _unlocked(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except PassphraseNeeded as locked:
            # Nothing was sent. A person's time at the prompt is no time of the host's.
            if not self._keyring.unlock(locked.files):
                raise
        self.breaker.answered()
        return ask()

    # --- commands ---

    def _run(self, argv: Sequence[str], data: bytes, timeout: float) -> Result:
        deadline = time.monotonic() + timeout
        with self._sessions.turn(timeout) as got:
            if not got:
                raise self._unknown(argv, "all sessions of the connection were busy")
            try:
                with self._session(deadline) as (connection, channel):
                    out, err = self._exec(channel, shlex.join(argv), data, deadline)
                    code = channel.recv_exit_status() if channel.status_event.is_set() else -1
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise self._unknown(argv, str(error) or "the connection was lost") from error
        if code < 0:
            alive = connection.is_active()
            why = "it ended without an exit status" if alive else "the connection was lost"
            raise self._unknown(argv, why)
        return Result(argv=tuple(argv), code=code, out=out, err=err)

    def _exec(
        self, channel: paramiko.Channel, command: str, data: bytes, deadline: float
    ) -> tuple[bytes, bytes]:
        with self._watched(channel, deadline):
            channel.exec_command(command)
            return converse(channel, data, deadline)

    @contextlib.contextmanager
    def open(self, argv: Sequence[str], *, timeout: float) -> Iterator[ChannelPipe]:
        deadline = time.monotonic() + timeout
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(self._sessions.turn(timeout)):
                raise self._unknown(argv, "all sessions of the connection were busy")
            try:
                _, channel = stack.enter_context(self._session(deadline))
                with self._watched(channel, deadline):
                    channel.exec_command(shlex.join(argv))
            except (paramiko.SSHException, OSError, EOFError) as error:
                raise self._unknown(argv, str(error) or "the connection was lost") from error
            yield ChannelPipe(channel, self.label)

    @contextlib.contextmanager
    def _watched(self, channel: paramiko.Channel, deadline: float) -> Iterator[None]:
        """A command's start waits for its reply without a limit; closing the channel ends that."""
        watch = threading.Timer(left_of(deadline), close_quietly, (channel,))
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    @contextlib.contextmanager
    def _session(self, deadline: float) -> Iterator[tuple[paramiko.Transport, paramiko.Channel]]:
        if not self._sessions.opening.acquire(timeout=left_of(deadline)):
            raise TimeoutError("all sessions that the server allows were busy")
        try:
            connection, channel = self._open_session(deadline)
            self._sessions.opened()
        finally:
            self._sessions.opening.release()
        try:
            yield connection, channel
        finally:
            close_quietly(channel)
            self._sessions.ended()

    def _open_session(self, deadline: float) -> tuple[paramiko.Transport, paramiko.Channel]:
        """On a new connection when the old one turns out to be dead, or out of sessions.

        No command was sent, so trying again cannot run one twice.
        """
        began = time.monotonic()
        fresh, patience = False, 0.0
        while True:
            connection = self._connection(deadline)
            try:
                return connection, connection.open_session(timeout=left_of(deadline))
            except paramiko.ChannelException:
                if self._sessions.wait_for_one(left_of(deadline)):
                    patience = 0.0
                    continue
                patience = patience or time.monotonic() + CLOSING_S
                if time.monotonic() < patience:
                    time.sleep(0.05)  # the server is still closing the one before
                elif fresh:
                    raise
                else:
                    # Commands that we gave up still run there and hold their sessions.
                    fresh, patience = True, 0.0
                    self._forget(connection)
            except (paramiko.SSHException, OSError, EOFError):
                connection.join(timeout=min(left_of(deadline), 1.0))
                # After a long silence, another try would only double the wait.
                if fresh or connection.is_active() or time.monotonic() > began + AT_ONCE_S:
                    raise
                fresh = True

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
            wait_s = self.breaker.wait_s
            if self._failure is not None and wait_s:
                # One stream of tries for all who wait on a dead machine.
                self._failure.retry_in_s = wait_s
                raise self._failure.with_traceback(None)
            try:
                self._hops = self._connect(deadline)
            except RemoteError as error:
                self._failure = error
                self.breaker.failed()
                error.retry_in_s = self.breaker.wait_s
                raise
            self._failure = None
            self.breaker.answered()
            if self._closed:
                self._drop()
                raise Unreachable(f"The connection to {self.label} was closed by us")
            return self._hops[-1].transport
        finally:
            self._lock.release()

    def _connect(self, deadline: float) -> list[Hop]:
        try:
            return self._open(time.monotonic() + min(left_of(deadline), LOGIN_S))
        except (OSError, EOFError, paramiko.SSHException) as error:
            why = getattr(error, "strerror", "") or str(error) or "it hung up"
            raise Unreachable(
                f"Cannot reach {self.label}: {why}",
                hint="nothing was sent; check the address, the port and the network",
            ) from error

    def _open(self, deadline: float) -> list[Hop]:
        """A transport per hop; the last one is the host's."""
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        route = chain(
            self.target.address,
            user=self.target.user,
            port=self.target.port if self.target.port != 22 else None,
            identity=identity_of(self.target),
            config=self._config,
        )
        hops: list[Hop] = []
        try:
            for place in route:
                last = place is route[-1]
                hop = open_hop(
                    place,
                    hops,
                    label=self.label if last else f"the jump host {place.host}",
                    last=last,
                    pinned=self.target.host_key if last else None,
                    deadline=deadline,
                    connect_s=self._connect_s,
                    silence_s=self._silence_s,
                    keyring=self._keyring,
                )
                hops.append(hop)
        except BaseException:
            for hop in reversed(hops):
                hop.close()
            raise
        # An answer waits its turn behind megabytes, which on a thin line takes its time.
        hops[-1].keep_alive(silence_s=self._silence_s * (4 if self._bulky else 1))
        self.route = route[-1]
        self._shown_key = key_text(hops[-1].transport.get_remote_server_key())
        return hops

    def _forget(self, connection: paramiko.Transport) -> None:
        with self._lock:
            if self._hops and self._hops[-1].transport is connection:
                self._drop()

    def _drop(self) -> None:
        for hop in reversed(self._hops):
            hop.close()
        self._hops = []
