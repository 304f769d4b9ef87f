"""A port of a host on this machine's loopback, as long as somebody waits for it.

Every connection is carried by whatever SSH connection there is at that moment, so the tunnel
outlives any one of them: what was open breaks with a link, what comes after it does not.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from remote.errors import RemoteError
from remote.ssh import SshTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    import paramiko

    from remote.transport import Transport

OPEN_S = 20.0
CHUNK = 1 << 16


class Tunnel:
    """Listens on loopback, once something answers on the host's port.

    `said` is told when the host is lost and when it answers again.

    Raises:
        RemoteError: nothing answers there, or the local port is taken.
    """

    def __init__(
        self,
        transport: Transport,
        port: int,
        *,
        local_port: int | None = None,
        said: Callable[[str], None] = lambda _text: None,
    ) -> None:
        if not isinstance(transport, SshTransport):
            raise RemoteError(
                f"Port {port} of {transport.label} is on this machine already",
                hint=f"open http://127.0.0.1:{port}",
            )
        self.port = port
        self._transport = transport
        self._said = said
        self._lost = False
        transport.stream_to(port, timeout=OPEN_S).close()
        self._listener = _listen(port, local_port)
        self.local_port = int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.local_port}"

    def serve(self, stop: threading.Event) -> None:
        """Carries connections until `stop` is set."""
        self._listener.settimeout(0.2)
        with self._listener:
            while not stop.is_set():
                with suppress(TimeoutError):
                    client, _ = self._listener.accept()
                    threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client:
            try:
                far = self._transport.stream_to(self.port, timeout=OPEN_S)
            except RemoteError as error:
                self._tell(str(error), lost=True)
                return
            self._tell(f"{self._transport.label} answers again", lost=False)
            with far:
                upward = threading.Thread(target=_copy, args=(client, far), daemon=True)
                upward.start()
                _copy(far, client)
                with suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
                upward.join()

    def _tell(self, text: str, *, lost: bool) -> None:
        if lost != self._lost:
            self._lost = lost
            self._said(text)


def _listen(port: int, wanted: int | None) -> socket.socket:
    """On the wanted port, else on the one of the same number, else on any."""
    for number in (port, 0) if wanted is None else (wanted,):
        try:
            return socket.create_server(("127.0.0.1", number))
        except OSError as error:
            reason = error
    raise RemoteError(
        f"Cannot listen on port {wanted}: {reason.strerror}", hint="choose another --local-port"
    ) from reason


def _copy(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    """Until one side ends; the other is told."""
    with suppress(OSError, EOFError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
