"""What a workspace puts into a snapshot, and what is in one that came from elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from state import Snapshot, TaskState
from state.connection import connect
from state.export import copy_database, make_current
from state.ids import stamp, utc_now
from state.journal import canonical
from state.reading import read_snapshot
from state.regions import NOTES_BEGIN, MarkersBroken, take_apart
from state.snapshot_file import DATABASE, SnapshotHead, unpack
from state.transitions import TERMINAL

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.workspace import Workspace
    from state import HostBinding, Task

RUNBOOK, PROGRESS, PARAMS, BASE = "runbook.yaml", "PROGRESS.md", "params.json", "progress.base.md"
SETTLED = frozenset({TaskState.DONE, TaskState.SKIPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A snapshot that was unpacked, checked, and not yet used."""

    head: SnapshotHead
    files: dict[str, bytes]
    database: Path
    snapshot: Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What would act if the snapshot were used: shown before its first use."""

    tasks: dict[str, tuple[str, ...]]
    """Task -> what it runs, in words."""
    done: tuple[str, ...]
    """Those of them that have run, and do so again only when somebody asks for it."""
    hosts: dict[str, str]
    """Role -> machine and its pinned key."""
    secrets: dict[str, str]
    """Secret -> where its value would be taken from, on this machine."""
    digest: str
    """Of all of it; `--trust` names it."""


def texts(workspace: Workspace) -> dict[str, bytes]:
    """The files beside the database that another machine needs."""
    places = {
        RUNBOOK: workspace.runbook_file,
        PROGRESS: workspace.progress_file,
        PARAMS: workspace.private / PARAMS,
        BASE: workspace.private / BASE,
    }
    return {name: path.read_bytes() for name, path in places.items() if path.is_file()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One revision of a workspace, packed."""

    head: SnapshotHead
    data: bytes
    progress: bytes | None
    """PROGRESS.md as it is in there."""


def collect(workspace: Workspace, *, author: str, folder: Path) -> Outgoing:
    """One revision of the workspace as one file. `folder` is for the copy in between."""
    from state.snapshot_file import pack

    copy = folder / DATABASE
    beside = texts(workspace)  # before the database: PROGRESS.md must not show a later revision
    revision, event_hash = copy_database(workspace.database, copy)
    files = {**beside, DATABASE: copy.read_bytes()}
    meta = load(copy).meta
    head = SnapshotHead(
        workspace_id=meta.workspace_id,
        name=meta.name,
        title=meta.title,
        revision=revision,
        event_hash=event_hash,
        author=author,
        at=stamp(utc_now()),
        notes_sha256=sha256(notes_of(files.get(PROGRESS, b""))).hexdigest(),
    )
    return Outgoing(head=head, data=pack(head, files), progress=files.get(PROGRESS))


def notes_of(progress: bytes) -> bytes:
    """What people wrote into PROGRESS.md outside our region; all of it when that is not found."""
    try:
        found = take_apart(progress.decode("utf-8-sig"))
    except (MarkersBroken, UnicodeDecodeError):
        return progress
    return f"{found.before}{NOTES_BEGIN}{found.after}".encode()


def receive(data: bytes, label: str, folder: Path) -> Incoming:
    """Unpack into `folder`, migrate the copy and prove it sound. Raises StateError."""
    head, files = unpack(data, label)
    database = folder / f"incoming-{DATABASE}"
    database.write_bytes(files[DATABASE])
    make_current(database)
    return Incoming(head=head, files=files, database=database, snapshot=load(database))


def load(database: Path) -> Snapshot:
    """The state in a copy that nobody else has open."""
    conn = connect(database)
    try:
        return read_snapshot(conn)
    finally:
        conn.close()


def contents(snapshot: Snapshot) -> Contents:
    """Everything in a state that can make something run."""
    tasks = {task.id: _runs(snapshot, task) for task in snapshot.tasks if not task.removed}
    hosts = {host.role: _machine(host) for host in snapshot.hosts}
    secrets = {secret.name: canonical(dict(secret.source)) for secret in snapshot.secrets}
    done = tuple(task.id for task in snapshot.tasks if task.state in SETTLED and task.id in tasks)
    return Contents(
        tasks=tasks, done=done, hosts=hosts, secrets=secrets, digest=_digest(snapshot, hosts)
    )


def news(incoming: Contents, ours: Contents | None) -> Contents:
    """What of it this machine has not shown to anybody before."""
    if ours is None:
        return incoming

    def new(theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in theirs.items() if mine.get(name) != value}

    return replace(
        incoming,
        tasks=new(incoming.tasks, ours.tasks),
        hosts=new(incoming.hosts, ours.hosts),
        secrets=new(incoming.secrets, ours.secrets),
    )


def _runs(snapshot: Snapshot, task: Task) -> tuple[str, ...]:
    """The command where the file has one, step type and all other arguments; then its checks."""
    rest = dict(task.definition.get("with") or {})
    lines = []
    if isinstance(rest.get("argv"), list):
        lines.append(" ".join(map(str, rest.pop("argv"))))
    if isinstance(rest.get("sh"), str):
        lines.append(f"sh -c {json.dumps(rest.pop('sh'), ensure_ascii=False)}")
    if rest or not lines:
        lines.append(f"{task.step} {canonical(rest)}")
    for key in ("done_when", "ready_when"):
        lines += [f"{key}: {canonical(check)}" for check in task.definition.get(key) or ()]
    attempt = snapshot.latest_attempt(task.id)
    job = attempt.detail.get("job") if attempt and attempt.state not in TERMINAL else None
    if job:
        words = [*(f"{key}={value}" for key, value in job["env"].items()), *map(str, job["argv"])]
        lines.append(f"already intended or under way: {' '.join(words)}")
    return tuple(lines)


def _machine(host: HostBinding) -> str:
    if host.kind == "local":
        name = host.facts.get("hostname") or "the machine it was bound on"
        return f"local: {name}, jobs in {host.root}"
    user = f"{host.user}@" if host.user else ""
    ours = f", with your key {host.identity_file}" if host.identity_file else ""
    return f"{user}{host.address}:{host.port}{ours}, jobs in {host.root}, key {fingerprint(host)}"


def fingerprint(host: HostBinding) -> str:
    """As ssh shows it."""
    if not host.host_key:
        return "not pinned"
    import base64

    kind, _, rest = host.host_key.partition(" ")
    try:
        raw = base64.b64decode(rest.split(" ")[0], validate=True)
    except ValueError:
        return host.host_key[:80]
    digest = base64.b64encode(sha256(raw).digest()).decode().rstrip("=")
    return f"{kind} SHA256:{digest}"


def _digest(snapshot: Snapshot, hosts: dict[str, str]) -> str:
    """Of what can act, not of how far it is: work that goes on needs no second look."""
    jobs = {
        attempt.id: attempt.detail.get("job")
        for attempt in snapshot.attempts
        if attempt.state not in TERMINAL
    }
    text = canonical(
        [
            {task.id: [task.role, dict(task.definition)] for task in snapshot.tasks},
            hosts,
            {host.role: [host.host_key, host.work] for host in snapshot.hosts},
            {secret.name: dict(secret.source) for secret in snapshot.secrets},
            jobs,
        ]
    )
    return sha256(text.encode()).hexdigest()[:16]
