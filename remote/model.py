"""The records that cross this package's border. No behaviour, no I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON = Any

HostKind = Literal["local", "ssh"]
JobState = Literal["absent", "published", "running", "exited", "burned", "lost"]
Stream = Literal["out", "err", "progress"]
Verdict = Literal["pass", "fail", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command said. `code` is None only when a signal ended it."""

    argv: tuple[str, ...]
    code: int | None
    out: bytes
    err: bytes

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTarget:
    """Where a host is and how it proves itself."""

    kind: HostKind
    address: str = ""
    user: str = ""
    port: int = 22
    root: str
    host_key: str | None = None
    identity_file: str = ""
    """As with `ssh -i`: tried before what the configuration names; "" for that alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One detached process. Secrets reach its environment and are written nowhere."""

    attempt: str
    task: str
    generation: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    time_limit_s: float | None = None
    ports: tuple[int, ...] = ()
    resources: tuple[str, ...] = ()
    """What it needs for itself on the machine: gpu:0, port:30000, shm:NAME. Ports are added."""
    shm: tuple[str, ...] = ()
    """Name patterns of files it makes in /dev/shm; they go when it ends, unless others use them."""
    grace_s: float = 20
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    by: str = ""
    """Who starts it: told to whoever comes from another copy of the state. No part of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What a host's evidence says about an attempt. `cls` holds a failure class's name."""

    attempt: str
    state: JobState
    reason: str = ""
    pid: int | None = None
    pgid: int | None = None
    beat: int = 0
    exit_code: int | None = None
    signal: int | None = None
    cls: str | None = None
    progress: Mapping[str, JSON] | None = None
    progress_size: int = 0
    out_size: int = 0
    err_size: int = 0
    started_at: str | None = None
    ended_at: str | None = None
    evidence: Mapping[str, JSON] = field(default_factory=dict)
    keys: Mapping[str, float] | None = None
    """Of a running job to which keys are handed: `since` and `end` of the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOwner:
    """The attempt that a task belongs to on a host, whoever started it."""

    attempt: str
    generation: int
    by: str
    """Who started it; empty when that was not told."""
    at: str
    status: JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundJob:
    """A job as a host knows it, whoever started it."""

    task: str
    generation: int
    ports: tuple[int, ...]
    resources: tuple[str, ...]
    status: JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Bytes of a log from `offset` on. `restarted`: the file is another or shorter one.

    `offset` may lie beyond what was asked for: the middle of a very long log is given up.
    """

    data: bytes
    offset: int
    size: int
    file_id: str
    restarted: bool

    @property
    def end(self) -> int:
        """Where to read on."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """Whether a job is proved gone, and else what is left of it.

    A survivor has `pid`, `command`, `state`, and `holds`: rows with `port`, with `gpu` and `bytes`,
    or with `file` and `bytes`. Without a process that we may see, `pid` is None.
    """

    state: Literal["stopped", "stop_incomplete"]
    survivors: tuple[Mapping[str, JSON], ...] = ()
    evidence: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict of one check and what was found."""

    verdict: Verdict
    evidence: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which machine this is, and which boot of it."""

    boot_id: str
    machine_id: str
    pid1_start: str
    host_key: str = ""
    hostname: str = ""

    @property
    def epoch(self) -> str:
        """A name for this boot of this machine. A new host name alone makes no new epoch."""
        parts = (self.boot_id, self.machine_id, self.pid1_start, self.host_key)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A resource of a machine, and the attempt that holds it; `locked`: its supervisor lives."""

    resource: str
    generation: int
    attempt: str
    task: str
    job: str
    uid: int
    locked: bool
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """An old job of which only the outcome and the ends of its logs are left on the host.

    `left`: what its payload had put into the job's directory, which nobody but a person removes.
    """

    attempt: str
    freed_bytes: int
    left: tuple[str, ...] = ()
