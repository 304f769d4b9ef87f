"""The records of the task graph: frozen, plain, and free of SQL.

`Snapshot` is one consistent reading of everything; all pure functions of this package take it
or parts of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping  # noqa: TC003 (schemas are made from these annotations)
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, TypeAlias

from state.errors import UnknownHost, UnknownTask

JSON: TypeAlias = Any  # what json.loads returns; a recursive alias would only add casts

NeedCondition: TypeAlias = Literal["ok", "any"]
Purpose: TypeAlias = Literal["done", "ready", "gate"]
ApprovalAbout: TypeAlias = Literal["gate", "budget"]
Verdict: TypeAlias = Literal["pass", "fail", "unknown"]


class TaskKind(StrEnum):
    ONCE = "once"
    SERVICE = "service"
    MANUAL = "manual"


class TaskState(StrEnum):
    DRAFT = "draft"
    BLOCKED = "blocked"
    READY = "ready"
    GATED = "gated"
    ACTIVE = "active"
    VERIFYING = "verifying"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    STALE = "stale"
    ATTENTION = "attention"
    STARTING = "starting"
    SERVING = "serving"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"


class AttemptState(StrEnum):
    INTENDED = "intended"
    PUBLISHED = "published"
    STARTED = "started"
    RUNNING = "running"
    EXITED = "exited"
    COLLECTING = "collecting"
    VERIFIED = "verified"
    CHECK_FAILED = "check_failed"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STOP_INCOMPLETE = "stop_incomplete"
    NEVER_STARTED = "never_started"
    LOST = "lost"


class FailureClass(StrEnum):
    OK = "ok"
    EXIT = "exit"
    SIGNAL = "signal"
    OOM = "oom"
    DISK_FULL = "disk_full"
    TIME_LIMIT = "time_limit"
    STOPPED = "stopped"
    LOST_REBOOT = "lost_reboot"
    LOST_REBUILT = "lost_rebuilt"
    LOST_SUPERVISOR_DIED = "lost_supervisor_died"
    LOST_EVIDENCE_GONE = "lost_evidence_gone"
    NEVER_STARTED = "never_started"
    CHECK_FAILED = "check_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """An edge of the graph: this task first, with `ok` (it succeeded) or `any` (it ended)."""

    task: str
    condition: NeedCondition = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDef:
    """A task as a runbook file defines it."""

    id: str
    title: str
    phase: str
    step: str
    kind: TaskKind
    role: str | None
    needs: tuple[Need, ...]
    definition: Mapping[str, JSON]
    definition_hash: str
    position: int
    resources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task with what became of it. The first fields are those of `TaskDef`."""

    id: str
    title: str
    phase: str
    step: str
    kind: TaskKind
    role: str | None
    needs: tuple[Need, ...]
    definition: Mapping[str, JSON]
    definition_hash: str
    position: int
    resources: tuple[str, ...]
    state: TaskState
    reason: str
    out: Mapping[str, JSON]
    since: str
    removed: bool
    began_hash: str | None
    """Hash of the definition it last began to run with; differs after an edit in mid-run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution of a task on one host epoch."""

    id: str
    task: str
    number: int
    generation: int
    host: str
    epoch: str | None
    state: AttemptState
    cls: FailureClass | None
    exit_code: int | None
    signal: int | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    superseded_by: str | None
    definition_hash: str
    detail: Mapping[str, JSON]
    evidence: Mapping[str, JSON]

    @property
    def lost_reason(self) -> str | None:
        """`reboot`, `rebuilt`, `supervisor_died` or `evidence_gone` when lost, else None."""
        if self.state is not AttemptState.LOST or self.cls is None:
            return None
        return self.cls.value.removeprefix("lost_")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRun:
    """One probe with its verdict and what was found."""

    id: str
    task: str
    attempt: str | None
    purpose: Purpose
    name: str
    spec: Mapping[str, JSON]
    verdict: Verdict
    evidence: Mapping[str, JSON]
    at: str
    epoch: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBinding:
    """The machine behind a host role."""

    role: str
    kind: Literal["local", "ssh"]
    address: str = ""
    user: str = ""
    port: int = 22
    root: str = ""
    work: str = ""
    host_key: str | None = None
    identity_file: str = ""
    """The key that lets us in there, on the operator's machine; "": what ssh finds by itself."""
    epoch: str | None = None
    facts: Mapping[str, JSON] = field(default_factory=dict)
    seen_at: str | None = None
    unreachable_since: str | None = None
    usd_per_hour: float | None = None
    ends_at: str | None = None
    """When the rental ends; what cannot finish by then is not started unasked."""

    @property
    def machine(self) -> str:
        """The machine, however many roles it plays."""
        return "local" if self.kind == "local" else f"{self.user}@{self.address}:{self.port}"

    @property
    def place(self) -> str:
        """The machine as one would type it: boxes behind one address differ by their port alone."""
        if self.kind == "local":
            return "local"
        user = f"{self.user}@" if self.user else ""
        if self.port == 22:
            return f"{user}{self.address}"
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{user}{address}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEpoch:
    """One boot of one machine, as a role met it."""

    role: str
    epoch: str
    identity: Mapping[str, JSON]
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """How long a machine was there for a role, and what its hour costs."""

    id: str
    role: str
    machine: str
    usd_per_hour: float | None
    since: str
    until: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's yes: to a gate as it is defined now, or to one start over the budget."""

    id: str
    at: str
    actor: str
    task: str
    about: ApprovalAbout
    definition_hash: str
    attempts: int
    """How many attempts the task had had."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    id: str
    at: str
    actor: str
    task: str | None
    text: str
    decision: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    id: str
    task: str
    attempt: str | None
    uri: str
    size: int
    sha256: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact: it happened, has a number, and never changes."""

    seq: int
    at: str
    actor: str
    kind: str
    subject: str
    task: str | None
    payload: Mapping[str, JSON]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to act on a resource; of two tokens the larger one counts."""

    resource: str
    holder: str
    token: int
    acquired_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A person's or an agent's word that a task, or the whole run, is theirs for a while."""

    subject: str
    """A task id, or `run`."""
    holder: str
    token: int
    at: str
    for_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text that whoever takes over must read, as it was when it was listed."""

    path: str
    title: str
    sha256: str
    size: int
    at: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """The name of a secret and where it comes from; its value is nowhere in the state."""

    name: str
    source: Mapping[str, JSON]
    fingerprint: str | None
    """Salted and slow: tells that the value changed, not what it is."""
    seen_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What the workspace is about."""

    workspace_id: str
    name: str
    title: str
    goal: str
    runbook_hash: str
    runbook_path: str
    schema_version: int
    extra: Mapping[str, str] = field(default_factory=dict)
    """Whatever else was put by `Tx.set_meta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What loading a runbook file changed."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)  # not slotted: the look-ups below are cached in __dict__
class Snapshot:
    """Everything at one revision."""

    revision: int
    meta: Meta
    tasks: tuple[Task, ...]
    attempts: tuple[Attempt, ...]
    checks: tuple[CheckRun, ...]
    hosts: tuple[HostBinding, ...]
    notes: tuple[Note, ...]
    artifacts: tuple[Artifact, ...]
    leases: tuple[Lease, ...]
    claims: tuple[Claim, ...] = ()
    """Not given back; whether one has run out is for each reader to say."""
    documents: tuple[Document, ...] = ()
    secrets: tuple[SecretRef, ...] = ()
    approvals: tuple[Approval, ...] = ()
    rentals: tuple[Rental, ...] = ()
    epochs: tuple[HostEpoch, ...] = ()

    @cached_property
    def by_id(self) -> Mapping[str, Task]:
        return {task.id: task for task in self.tasks}

    @cached_property
    def _attempts(self) -> Mapping[str, tuple[Attempt, ...]]:
        grouped: defaultdict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            grouped[attempt.task].append(attempt)
        return {task: tuple(rows) for task, rows in grouped.items()}

    @cached_property
    def _checks(self) -> Mapping[str, tuple[CheckRun, ...]]:
        grouped: defaultdict[str, list[CheckRun]] = defaultdict(list)
        for check in self.checks:
            grouped[check.task].append(check)
        return {task: tuple(rows) for task, rows in grouped.items()}

    def task(self, task_id: str) -> Task:
        try:
            return self.by_id[task_id]
        except KeyError:
            raise UnknownTask(task_id, self.by_id) from None

    def attempts_of(self, task_id: str) -> tuple[Attempt, ...]:
        """Oldest first."""
        self.task(task_id)
        return self._attempts.get(task_id, ())

    def latest_attempt(self, task_id: str) -> Attempt | None:
        attempts = self.attempts_of(task_id)
        return attempts[-1] if attempts else None

    def checks_of(self, task_id: str) -> tuple[CheckRun, ...]:
        """The latest run of each of its checks."""
        self.task(task_id)
        return self._checks.get(task_id, ())

    def host(self, role: str) -> HostBinding:
        for host in self.hosts:
            if host.role == role:
                return host
        raise UnknownHost(role)
