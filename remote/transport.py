"""How commands reach a host. Everything above this line does not know whether SSH is involved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from remote.errors import Unreachable
    from remote.model import HostTarget, Result


class Pipe(Protocol):
    """A running command's input and output. One thread may write while another reads.

    Every method raises Unreachable when the link broke, or nothing moved for long.
    """

    def write(self, data: bytes) -> None: ...

    def end(self) -> None:
        """No more input comes."""
        ...

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end."""
        ...

    def abort(self) -> None:
        """Nobody writes or reads any more: whoever waits in either is let go."""
        ...

    def cut(self, why: str) -> Unreachable:
        """The error that says so, with what the command said of it."""
        ...


class Transport(Protocol):
    """Runs short commands. Implementations are safe to use from several threads."""

    @property
    def label(self) -> str:
        """How the host is called in messages."""
        ...

    @property
    def host_key(self) -> str:
        """The key that the host proved to have, "" for this machine."""
        ...

    @property
    def way(self) -> str:
        """How the host was reached, resolved; over SSH "" before the first command."""
        ...

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        """Run a command to its end.

        Raises Unreachable when no exit status came back. That means *unknown*: the command may
        have run, may still run, may never have arrived.
        """
        ...

    def open(self, argv: Sequence[str], *, timeout: float) -> AbstractContextManager[Pipe]:
        """Start a command whose input and output flow; it ends with the context.

        Raises Unreachable when it did not start within `timeout`.
        """
        ...

    def bulk(self) -> Transport:
        """Where transfers go, so that no poll waits behind one. Closed with this one."""
        ...

    def close(self) -> None: ...


def open_transport(target: HostTarget) -> Transport:
    """The transport that a host record asks for. Connects with the first command."""
    if target.kind == "local":
        from remote.local import LocalTransport

        return LocalTransport()
    from remote.ssh import SshTransport  # paramiko takes a while to import

    return SshTransport(target)
