"""Hosts and the jobs on them. Knows nothing of task graphs, of the TUI or of training."""

from __future__ import annotations

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
)
from remote.transport import Transport, open_transport

__all__ = [
    "Host", "LocalTransport", "Transport", "open_transport",
    "CheckResult", "Claim", "FoundJob", "HostTarget", "Identity", "JobSpec", "JobStatus",
    "LogChunk", "Result", "Shrunk", "StopReport",
    "AuthRefused", "CommandFailed", "HostFenceHeld", "HostKeyChanged", "HostKeyUnknown",
    "LaunchFailed", "NoRoom", "RemoteError", "StaleGeneration", "TransferFailed",
    "Unreachable", "UnsupportedHost",
]  # fmt: skip
