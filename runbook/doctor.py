"""Looks a workspace over: its database, what was recorded in it, its hosts. Changes nothing.

Every part is looked at by itself, so that a broken one does not hide the others; a database that
cannot be opened is a finding, not an error.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from remote import RemoteError, Unreachable
from runbook.costs import parse
from runbook.documents import document_states
from runbook.engine.hosts import Hosts
from runbook.errors import NoWorkspace
from runbook.reader import ENGINE
from runbook.reasons import wrong_answer
from runbook.service import Service
from runbook.slow_folders import slow_rows
from runbook.workspace import Workspace, find_workspace
from state import AttemptState, HostBinding, StateError
from state.doctor import examine
from state.transitions import RUNNING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state import Snapshot

LOOKS = 3
"""How often the database is looked at again when somebody wrote to it meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    part: str
    """database, progress, engine, attempts, documents, or host."""
    level: str
    """`ok`; `note`: worth knowing; `problem`: needs somebody."""
    text: str
    next: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Everything found, in the order in which it was looked at."""

    revision: int | None
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing needs somebody."""
        return all(finding.level != "problem" for finding in self.findings)


def check_up(folder: Path, *, ask_hosts: bool = True) -> Checkup:
    """Looks the workspace at `folder` or above it over.

    Raises:
        NoWorkspace: there is none.
    """
    try:
        workspace = find_workspace(folder)
    except NoWorkspace:
        bereft = _bereft(folder)
        if bereft is None:
            raise
        text = f"{bereft.database} is missing, but {bereft.private} is there"
        return Checkup(revision=None, findings=(_wrong(text, _restore(bereft)),))
    findings, readable = _database(workspace)
    if not readable:
        return Checkup(revision=None, findings=tuple(findings))
    try:
        with Service.open(workspace.root) as service:
            snapshot = service.snapshot()
            findings += _engine(service, snapshot)
            findings += _progress(service)
            findings += _attempts(snapshot)
            findings += _documents(workspace, snapshot)
            findings += _hosts(snapshot, ask=ask_hosts)
            revision = snapshot.revision
    except StateError as error:
        return Checkup(revision=None, findings=(*findings, _refused(workspace, error)))
    return Checkup(revision=revision, findings=tuple(findings))


# The database.


def _database(workspace: Workspace) -> tuple[list[Finding], bool]:
    """What is found, and whether anything else can be read from it."""
    path = workspace.database
    try:
        problems = _examined(path)
    except StateError as error:
        return [_refused(workspace, error)], False
    except (sqlite3.Error, LookupError, ValueError, TypeError) as error:
        # The file is sound, but what is in it is not a task graph.
        said = f"{path} cannot be understood: {error}."
        return [_wrong(said, _restore(workspace))], False
    if not problems:
        said = "the file is sound, its events are chained, and the tables follow from them"
        return [Finding(part="database", level="ok", text=said)], True
    damaged = any(text.startswith("The file is damaged") for text in problems)
    restore = _restore(workspace)
    return [_wrong(f"{path}: {text}", restore) for text in problems], not damaged


def _examined(path: Path) -> list[str]:
    """The examination of a database that stood still for it, if it ever does."""
    problems: list[str] = []
    for _ in range(LOOKS):
        before = _touched(path)
        problems = examine(path)
        if not problems or _touched(path) == before:
            break
    return problems


def _touched(path: Path) -> tuple[tuple[int, int], ...]:
    files = (path, path.with_name(f"{path.name}-wal"))
    return tuple((f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.exists())


def _bereft(folder: Path) -> Workspace | None:
    """What was a workspace and has lost its database; `runbook init` would begin at nothing."""
    start = folder.absolute()
    candidates = (Workspace(place) for place in (start, *start.parents))
    return next((one for one in candidates if (one.private / "locks").is_dir()), None)


def _refused(workspace: Workspace, error: StateError) -> Finding:
    # A hint to run this very verb would lead in a circle.
    circular = not error.hint or "runbook doctor" in error.hint
    return _wrong(str(error), _restore(workspace) if circular else error.hint)


def _wrong(text: str, what_next: str) -> Finding:
    return Finding(part="database", level="problem", text=text, next=what_next)


def backups(path: Path) -> list[Path]:
    """The backups beside a database, the newest first."""
    found = path.parent.glob(f"{path.name}.*.bak")
    return sorted(found, key=lambda backup: backup.stat().st_mtime, reverse=True)


def _restore(workspace: Workspace) -> str:
    path = workspace.database
    found = backups(path)
    aside = f"move {path.name}, {path.name}-wal and {path.name}-shm in {path.parent} aside"
    if not found:
        return (
            f"No backup lies beside it. Keep a copy of {path.parent}; then {aside} and "
            "`runbook init` again: what jobs left on their hosts is still there."
        )
    listed = ", ".join(f"{backup.name} ({_day(backup)})" for backup in found)
    return f"Backups beside it: {listed}. Keep a copy, {aside}, copy {found[0].name} in its place."


def _day(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")


# What is recorded.


def _engine(service: Service, snapshot: Snapshot) -> Iterator[Finding]:
    holder = service.engine_holder(snapshot)
    row = next((lease for lease in snapshot.leases if lease.resource == ENGINE), None)
    running = [task.id for task in snapshot.tasks if task.state in RUNNING]
    if holder is not None:
        yield Finding(part="engine", level="ok", text=f"{holder} advances the graph")
    elif row is not None:
        yield Finding(
            part="engine",
            level="note",
            text=f"{row.holder} advanced the graph and died without a word",
            next="Nothing is lost: `runbook run` or `runbook watch` takes over.",
        )
    elif running:
        yield Finding(
            part="engine",
            level="note",
            text=f"nobody advances the graph, while it has {', '.join(running)} running",
            next="`runbook run` or `runbook watch` looks after what runs.",
        )
    else:
        yield Finding(part="engine", level="ok", text="nobody advances the graph; nothing runs")


def _progress(service: Service) -> Iterator[Finding]:
    name = service.workspace.progress_file.name
    if service.progress_is_current():
        yield Finding(part="progress", level="ok", text=f"{name} shows the newest revision")
    elif service.store.is_live(ENGINE):
        yield Finding(part="progress", level="note", text=f"{name} is being written by the engine")
    else:
        yield Finding(
            part="progress",
            level="problem",
            text=f"{name} is not the rendering of the newest revision",
            next="`runbook progress` writes it; `--fix` if it says that it cannot.",
        )


def _attempts(snapshot: Snapshot) -> Iterator[Finding]:
    orphans = 0
    for attempt in snapshot.attempts:
        task = snapshot.task(attempt.task)
        if attempt.state in TERMINAL or (task.state in RUNNING and not task.removed):
            continue
        orphans += 1
        why = "was removed from the runbook" if task.removed else f"is {task.state}"
        ending = f"`runbook stop {task.id}` ends it and verifies that."
        if attempt.state is AttemptState.STOP_INCOMPLETE and not task.removed:
            ending = f'`runbook supersede {task.id} --reason "..."` sweeps it and starts anew.'
        yield Finding(
            part="attempts",
            level="problem",
            text=f"attempt {attempt.number} of {task.id} is {attempt.state} on {attempt.host}, "
            f"but the task {why}: something may run that nobody looks after",
            next=ending,
        )
    if not orphans:
        yield Finding(part="attempts", level="ok", text="no attempt without its task")


def _documents(workspace: Workspace, snapshot: Snapshot) -> Iterator[Finding]:
    states = document_states(workspace.root, snapshot.documents)
    for path, state in states.items():
        if state != "same":
            yield Finding(
                part="documents",
                level="note",
                text=f"{path} {'is gone' if state == 'gone' else 'changed'} since it was listed",
                next=f"Read it, then `runbook doc add {path}`; or `runbook doc remove {path}`."
                if state == "changed"
                else f"Bring it back, or `runbook doc remove {path}`.",
            )
    if states and set(states.values()) == {"same"}:
        said = "every listed document is what it was"
        yield Finding(part="documents", level="ok", text=said)


# Hosts.


def _hosts(snapshot: Snapshot, *, ask: bool) -> Iterator[Finding]:
    bound = {host.role for host in snapshot.hosts}
    for role in json.loads(snapshot.meta.extra.get("roles", "{}")):
        if role not in bound:
            yield Finding(
                part="host",
                level="note",
                text=f"no machine plays {role} yet",
                next=f"`runbook host bind {role} local`, or user@address.",
            )
    hosts = Hosts(workspace_id=snapshot.meta.workspace_id)
    try:
        for binding in snapshot.hosts:
            yield _asked(hosts, snapshot, binding) if ask else _recorded(snapshot, binding)
            yield from _slow(binding)
            yield from _rental(binding, datetime.now(UTC))
    finally:
        hosts.close()


def _slow(binding: HostBinding) -> Iterator[Finding]:
    for slow in slow_rows(binding.facts):
        yield Finding(
            part="host",
            level="note",
            text=f"{binding.role}: {slow}",
            next="Put environments and models elsewhere.",
        )


def _rental(binding: HostBinding, now: datetime) -> Iterator[Finding]:
    if binding.ends_at is not None and parse(binding.ends_at) <= now:
        yield Finding(
            part="host",
            level="problem",
            text=f"the rental of {binding.role} ended at {binding.ends_at}: nothing starts there "
            "unasked",
            next="Bind another machine; or, rented for longer or by mistake in the past, "
            f"`runbook host rent {binding.role} --ends-at TIME`.",
        )


def _recorded(snapshot: Snapshot, binding: HostBinding) -> Finding:
    where = f"{binding.role} ({binding.place})"
    if binding.unreachable_since is None:
        said = f"{where} answered when it was last asked"
        return Finding(part="host", level="ok", text=said)
    wrong = wrong_answer(snapshot, binding.role)
    does = "has answered wrongly" if wrong else "has not answered"
    return Finding(
        part="host",
        level="problem",
        text=f"{where} {does} since {binding.unreachable_since}{f': {wrong}' if wrong else ''}",
        next=f"Its jobs may run on. `runbook host probe {binding.role}` asks again.",
    )


def _asked(hosts: Hosts, snapshot: Snapshot, binding: HostBinding) -> Finding:
    where = f"{binding.role} ({binding.place})"
    try:
        epoch = hosts.of_role(snapshot, binding.role).identity().epoch
    except RemoteError as error:
        since = f", and was silent before, since {binding.unreachable_since}"
        silent = isinstance(error, Unreachable)
        return Finding(
            part="host",
            level="problem",
            text=f"{where} {'does not answer' if silent else 'cannot be used'}"
            f"{since if binding.unreachable_since else ''}: {error}",
            next=error.hint or "Its jobs may run on; they are looked at when it answers again.",
        )
    if binding.epoch is not None and epoch != binding.epoch:
        return Finding(
            part="host",
            level="problem",
            text=f"{where} was rebooted or rebuilt since it was last looked at",
            next="`runbook run` settles its attempts; `runbook verify` what was done on it.",
        )
    return Finding(part="host", level="ok", text=f"{where} answers")
