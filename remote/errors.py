"""What can go wrong between us and a host. Every error carries what to do next in `hint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote.model import Result


class RemoteError(Exception):
    """Base of this package's errors."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.retry_in_s: float | None = None
        """When the host is tried again, while it is left alone after failures."""

    @property
    def in_short(self) -> str:
        """What was found, in one line."""
        return " ".join(self.message.split())


class Unreachable(RemoteError):
    """No answer came. The request may have been carried out: the outcome is unknown."""


class WrongAnswer(Unreachable):
    """Something answered, but not our program there. What was asked may have been carried out."""


class AuthRefused(Unreachable):
    """The host answered and let nobody in: nothing was carried out."""


class HostKeyUnknown(Unreachable):
    """The host shows a key that nobody has accepted yet. Nothing was sent to it."""

    def __init__(self, label: str, *, key: str, fingerprint: str) -> None:
        super().__init__(
            f"Cannot trust {label}: its {key.split()[0]} key {fingerprint} is not known",
            hint="compare the fingerprint with the provider's page, then pin it to this host",
        )
        self.key = key
        self.fingerprint = fingerprint


class HostKeyChanged(Unreachable):
    """The host shows another key than the pinned one: perhaps another machine.

    Nothing was sent to it, and nothing is known of what runs on the one we mean.
    """

    def __init__(
        self, label: str, *, expected: str, found: str, fingerprint: str, expected_fingerprint: str
    ) -> None:
        super().__init__(
            f"Refusing {label}: it shows the {found.split()[0]} key {fingerprint}, "
            "not the one pinned for this host",
            hint="find out whether the machine was rebuilt; if so, pin the new key to it",
        )
        self.expected = expected
        self.found = found
        self.fingerprint = fingerprint
        self.expected_fingerprint = expected_fingerprint


class HostFenceHeld(RemoteError):
    """Another attempt owns the task, or a resource it needs, on that host."""

    def __init__(
        self,
        message: str,
        *,
        attempt: str,
        generation: int,
        resource: str = "",
        holder: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=f"follow attempt {attempt}, or stop it first")
        self.attempt = attempt
        self.generation = generation
        self.resource = resource
        self.holder = dict(holder or {})  # of a resource: task, job, uid, and why it is held


class StaleGeneration(RemoteError):
    """A request for an attempt that is not, or no longer, the owner of its task on the host."""


class UnsupportedHost(RemoteError):
    """The machine cannot run jobs: not Linux, or without a usable Python."""


class LaunchFailed(RemoteError):
    """The host refused a launch; the payload has not run."""

    def __init__(self, message: str, *, kind: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class TransferFailed(RemoteError):
    """A file did not get to the other side, or not as it is here."""


class NoRoom(TransferFailed):
    """There is not enough room for what should be copied; nothing was written."""

    def __init__(self, where: str, *, need: int, free: int, headroom: int) -> None:
        super().__init__(
            f"{where} has {free / 1e9:.2f} GB free; {need / 1e9:.2f} GB are to be written and "
            f"{headroom / 1e9:.2f} GB should stay free",
            hint="free space there, or name another place",
        )
        self.need = need
        self.free = free


class CommandFailed(RemoteError):
    """A command ran on the host and did not do what was asked."""

    def __init__(self, result: Result, *, where: str, hint: str = "") -> None:
        tail = result.err.decode("utf-8", "replace").strip().splitlines()[-10:]
        head = f"exit {result.code} on {where}: {' '.join(result.argv)[:200]}"
        super().__init__("\n  ".join([head, *tail]), hint=hint)
        self.result = result

    @property
    def in_short(self) -> str:
        """How the command ended, with its last word; the command itself may be long."""
        said = self.result.err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"exit {self.result.code}: {said}" if said else f"exit {self.result.code}"
