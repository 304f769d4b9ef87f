"""Hosts and the jobs on them. Knows nothing of task graphs, of the TUI or of training."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from remote.errors import (
        AuthRefused,
        CommandFailed,
        HostFenceHeld,
        HostKeyChanged,
        HostKeyUnknown,
        LaunchFailed,
        NoRoom,
        RemoteError,
        StaleGeneration,
        TransferFailed,
        Unreachable,
        UnsupportedHost,
        WrongAnswer,
    )
    from remote.host import Host
    from remote.local import LocalTransport
    from remote.model import (
        CheckResult,
        Claim,
        FoundJob,
        HostTarget,
        Identity,
        JobSpec,
        JobStatus,
        LogChunk,
        Result,
        Shrunk,
        StopReport,
        TaskOwner,
    )
    from remote.transport import Transport, open_transport

__all__ = [
    "Host", "LocalTransport", "Transport", "open_transport",
    "CheckResult", "Claim", "FoundJob", "HostTarget", "Identity", "JobSpec", "JobStatus",
    "LogChunk", "Result", "Shrunk", "StopReport", "TaskOwner",
    "AuthRefused", "CommandFailed", "HostFenceHeld", "HostKeyChanged", "HostKeyUnknown",
    "LaunchFailed", "NoRoom", "RemoteError", "StaleGeneration", "TransferFailed",
    "Unreachable", "UnsupportedHost", "WrongAnswer",
]  # fmt: skip

# Found when asked for: what only wants one name (every verb asks for passphrases by `remote`)
# does not load transports and transfers.
_MODULES = ("errors", "model", "transport", "local", "host")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = getattr(import_module(f"remote.{module}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module 'remote' has no attribute {name!r}")
