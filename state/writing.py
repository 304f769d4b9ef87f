"""`Tx`: every change there is, each a guarded UPDATE or INSERT with its event beside it.

A `Tx` lives inside one `BEGIN IMMEDIATE`; nothing in here may wait for a host or a person.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state import ids, journal
from state.errors import (
    NotRunnable,
    PreviousAttemptLive,
    StateError,
    StateMoved,
    UnknownAttempt,
    UnknownHost,
    UnknownTask,
)
from state.graph import readiness, unmet
from state.loading import load_tasks
from state.model import (
    JSON,
    Artifact,
    Attempt,
    AttemptState,
    CheckRun,
    FailureClass,
    HostBinding,
    LoadReport,
    Note,
    Purpose,
    Task,
    TaskKind,
    TaskState,
    Verdict,
)
from state.reading import GraphNode, attempt_from, read_nodes, task_from
from state.transitions import BEGINS, RUNNING, TERMINAL, check_attempt_move, check_task_move

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    from state.model import TaskDef

STARTED = frozenset({AttemptState.STARTED, AttemptState.RUNNING})


class Tx:
    """One write transaction."""

    def __init__(
        self, conn: sqlite3.Connection, *, actor: str, clock: Callable[[], datetime]
    ) -> None:
        self._conn = conn
        self._actor = journal.clean(actor)
        self._moment = clock()  # one time for everything that happens in one transaction
        self._head = journal.head(conn)
        self._graph_changed = False
        self.at = ids.stamp(self._moment)

    @property
    def revision(self) -> int:
        """The number of the last event, those of this transaction included."""
        return self._head[0]

    # -- tasks ----------------------------------------------------------------------------------

    def load_runbook(
        self,
        *,
        path: str,
        text: str,
        digest: str,
        name: str,
        title: str,
        goal: str,
        tasks: Sequence[TaskDef],
    ) -> LoadReport:
        """Take over a runbook file; what ran keeps its history. Repeated, it changes nothing."""
        self._conn.execute(
            "INSERT OR IGNORE INTO runbook_rev (digest, path, text, loaded_at, actor)"
            " VALUES (?, ?, ?, ?, ?)",
            [digest, path, text, self.at, self._actor],
        )
        head = {
            "runbook_hash": digest,
            "runbook_path": path,
            "name": name,
            "title": title,
            "goal": goal,
        }
        if any(self._meta(key) != value for key, value in head.items()):
            for key, value in head.items():
                self._put_meta(key, value)
            self.event("runbook.loaded", digest, head)
        report = load_tasks(self, tasks)
        self._graph_changed = True
        return report

    def task(self, task_id: str) -> Task:
        """The task as it is inside this transaction."""
        row = self._conn.execute("SELECT * FROM task WHERE id = ?", [task_id]).fetchone()
        if row is None:
            known = [row[0] for row in self._conn.execute("SELECT id FROM task")]
            raise UnknownTask(task_id, known)
        return task_from(row)

    def tasks(self) -> list[Task]:
        """All tasks as they are inside this transaction, in the order of the file."""
        return list(map(task_from, self._conn.execute("SELECT * FROM task ORDER BY position, id")))

    def move_task(
        self, task_id: str, to: TaskState, *, expect: Collection[TaskState], reason: str = ""
    ) -> Task:
        """Compare and set. A run whose definition was edited meanwhile ends `stale`, not `done`."""
        task = self.task(task_id)
        service = task.kind is TaskKind.SERVICE
        check_task_move(task_id, task.state, to, expect=expect, service=service)
        began = task.began_hash
        if task.state not in RUNNING and to in RUNNING:
            began = task.definition_hash
        if to in BEGINS and task.state in (TaskState.READY, TaskState.GATED):
            why = unmet(task, {need.task: self.task(need.task) for need in task.needs})
            if why:
                raise NotRunnable(task_id, why)
        self.put_state(task, to, reason, began)
        if to is TaskState.DONE and task.state in RUNNING and began != task.definition_hash:
            self.put_state(
                self.task(task_id), TaskState.STALE, "its definition changed while it ran", began
            )
        return self.task(task_id)

    def put_state(
        self, task: Task | GraphNode, to: TaskState, reason: str, began_hash: str | None = None
    ) -> None:
        """Write a move that is already known to be legal; the database has the last word."""
        began = task.began_hash if began_hash is None else began_hash
        reason = journal.clean(reason)
        changed = self._conn.execute(
            "UPDATE task SET state = ?, reason = ?, since = ?, began_hash = ?"
            " WHERE id = ? AND state = ?",
            [to.value, reason, self.at, began, task.id, task.state.value],
        ).rowcount
        if changed != 1:
            raise StateMoved("task", task.id, "no longer so", to, [task.state])
        payload = {"from": task.state.value, "to": to.value, "reason": reason}
        if began != task.began_hash:
            payload["began_hash"] = began or ""
        self.event("task.moved", task.id, payload, task=task.id)
        self._graph_changed = True

    def set_out(self, task_id: str, out: Mapping[str, JSON]) -> None:
        """What the task hands to those after it: `${task.x.out.key}`."""
        task, text = self.task(task_id), journal.canonical(dict(out))
        if journal.canonical(task.out) != text:
            self._conn.execute("UPDATE task SET out = ? WHERE id = ?", [text, task_id])
            self.event("task.out", task_id, {"out": json.loads(text)}, task=task_id)

    # -- attempts -------------------------------------------------------------------------------

    def attempt(self, attempt_id: str) -> Attempt:
        """The attempt as it is inside this transaction."""
        row = self._conn.execute("SELECT * FROM attempt WHERE id = ?", [attempt_id]).fetchone()
        if row is None:
            raise UnknownAttempt(attempt_id)
        return attempt_from(row)

    def latest_attempt(self, task_id: str) -> Attempt | None:
        row = self._conn.execute(
            "SELECT * FROM attempt WHERE task = ? ORDER BY number DESC LIMIT 1", [task_id]
        ).fetchone()
        return attempt_from(row) if row else None

    def create_attempt(
        self,
        task_id: str,
        *,
        host: str,
        epoch: str | None,
        detail: Mapping[str, JSON] | None = None,
        supersede: bool = False,
        generation: int | None = None,
    ) -> Attempt:
        """Intend one more execution. Refused while the previous one may still run.

        `generation` is for an operator who learned from the host that others counted further.
        """
        task = self.task(task_id)
        previous = self.latest_attempt(task_id)
        if previous is not None:
            lost = previous.state is AttemptState.LOST
            if previous.state not in TERMINAL or (lost and not supersede):
                raise PreviousAttemptLive(task_id, previous.id, previous.state, lost=lost)
        row: dict[str, JSON] = {
            "id": ids.ulid(self._moment),
            "task": task_id,
            "number": previous.number + 1 if previous else 1,
            "generation": max(generation or 1, previous.generation + 1 if previous else 1),
            "host": journal.clean(host),
            "epoch": None if epoch is None else journal.clean(epoch),
            "state": AttemptState.INTENDED.value,
            "created_at": self.at,
            "definition_hash": task.definition_hash,
            "detail": journal.canonical(dict(detail or {})),
            "evidence": "{}",
        }
        self._insert("attempt", row)
        payload = {**row, "detail": json.loads(row["detail"])}
        for constant in ("id", "task", "state", "created_at", "evidence"):
            del payload[constant]  # they are in the event itself, or always the same
        self.event("attempt.created", row["id"], payload, task=task_id)
        if previous is not None and previous.state is AttemptState.LOST:
            self._conn.execute(
                "UPDATE attempt SET superseded_by = ? WHERE id = ?", [row["id"], previous.id]
            )
            self.event("attempt.superseded", previous.id, {"by": row["id"]}, task=task_id)
        return self.attempt(row["id"])

    def move_attempt(
        self,
        attempt_id: str,
        to: AttemptState,
        *,
        expect: Collection[AttemptState],
        cls: FailureClass | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        evidence: Mapping[str, JSON] | None = None,
        started_at: str | None = None,
        ended_at: str | None = None,
    ) -> Attempt:
        """Compare and set. What is not given keeps its value; evidence is added key by key.

        Times are those of the host where it told them, else those of this transaction.
        """
        found = self.attempt(attempt_id)
        check_attempt_move(attempt_id, found.state, to, expect=expect)
        change: dict[str, JSON] = {"state": to.value}
        if cls is not None:
            change["cls"] = cls.value
        if exit_code is not None:
            change["exit_code"] = exit_code
        if signal is not None:
            change["signal"] = signal
        if found.started_at is None and (started_at or to in STARTED):
            change["started_at"] = started_at or self.at
        ended = to is AttemptState.EXITED or to in TERMINAL
        if found.ended_at is None and (ended_at or ended):
            change["ended_at"] = ended_at or self.at
        if evidence:
            merged = journal.canonical({**found.evidence, **evidence})
            change["evidence"] = json.loads(merged)
        columns = dict(change)
        if evidence:
            columns["evidence"] = journal.canonical(change["evidence"])
        self._set_attempt(found, columns)
        payload = {"from": found.state.value, **change}
        self.event("attempt.moved", attempt_id, payload, task=found.task)
        return self.attempt(attempt_id)

    def _set_attempt(self, found: Attempt, columns: Mapping[str, JSON]) -> None:
        # Column names come from the literals above, never from outside.
        assignments = ", ".join(f"{name} = :{name}" for name in columns)
        query = f"UPDATE attempt SET {assignments} WHERE id = :_id AND state = :_found"  # noqa: S608
        values = {**columns, "_id": found.id, "_found": found.state.value}
        if self._conn.execute(query, values).rowcount != 1:
            raise StateMoved("attempt", found.id, "no longer so", columns["state"], [found.state])

    # -- what was found, said and made ----------------------------------------------------------

    def record_check(
        self,
        task_id: str,
        *,
        purpose: Purpose,
        name: str,
        spec: Mapping[str, JSON],
        verdict: Verdict,
        evidence: Mapping[str, JSON] | None = None,
        attempt: str | None = None,
        epoch: str | None = None,
    ) -> CheckRun:
        """Keep a verdict and what it rests on."""
        self.task(task_id)
        row = {
            "id": ids.ulid(self._moment),
            "task": task_id,
            "attempt": attempt,
            "purpose": purpose,
            "name": name,
            "spec": journal.canonical(dict(spec)),
            "verdict": verdict,
            "evidence": journal.canonical(dict(evidence or {})),
            "at": self.at,
            "epoch": epoch,
        }
        self._insert("check_run", row)
        payload = {"check": row["id"], "purpose": purpose, "name": name, "verdict": verdict}
        self.event("check.recorded", attempt or task_id, payload, task=task_id)
        plain = {"spec": json.loads(str(row["spec"])), "evidence": json.loads(str(row["evidence"]))}
        return CheckRun(**{**row, **plain})

    def record_artifact(
        self, task_id: str, *, uri: str, size: int, sha256: str, attempt: str | None = None
    ) -> Artifact:
        """Remember where a result lies and what its bytes are."""
        self.task(task_id)
        row: dict[str, JSON] = {
            "id": ids.ulid(self._moment),
            "task": task_id,
            "attempt": attempt,
            "uri": journal.clean(uri),
            "size": size,
            "sha256": sha256,
            "at": self.at,
        }
        self._insert("artifact", row)
        payload = {"artifact": row["id"], "uri": row["uri"], "size": size, "sha256": sha256}
        self.event("artifact.recorded", row["uri"], payload, task=task_id)
        return Artifact(**row)

    def add_note(
        self,
        text: str,
        *,
        task: str | None = None,
        decision: bool = False,
        actor: str | None = None,
    ) -> Note:
        """A person's or an agent's words; a decision is shown to everybody who takes over."""
        if task is not None:
            self.task(task)
        if not text.strip():
            raise StateError("The note is empty.", "Give its text.")
        row: dict[str, JSON] = {
            "id": ids.ulid(self._moment),
            "at": self.at,
            "actor": journal.clean(actor) if actor else self._actor,
            "task": task,
            "text": journal.clean(text),
            "decision": decision,
        }
        self._insert("note", row)
        payload = {"note": row["id"], "text": row["text"], "decision": decision}
        kind = "decision.made" if decision else "note.added"
        self.event(kind, task or "workspace", payload, task=task)
        return Note(**row)

    def bind_host(self, host: HostBinding) -> None:
        """Put a machine behind a role, or replace it."""
        row = {name: getattr(host, name) for name in HostBinding.__slots__}
        row["facts"] = journal.canonical(dict(host.facts))
        self._insert("host", row, verb="INSERT OR REPLACE")
        payload = {**row, "facts": json.loads(row["facts"])}
        del payload["role"]
        self.event("host.bound", host.role, payload)

    def seen_host(
        self, role: str, *, epoch: str | None, facts: Mapping[str, JSON] | None = None
    ) -> None:
        """It answered. Only news make an event: polling must not move the revision."""
        row = self._host(role)
        change: dict[str, JSON] = {}
        if epoch is not None and epoch != row["epoch"]:
            change["epoch"] = epoch
        text = row["facts"] if facts is None else journal.canonical(dict(facts))
        if text != row["facts"]:
            change["facts"] = json.loads(text)
        if row["unreachable_since"] is not None:
            change["unreachable_since"] = None
        self._conn.execute(
            "UPDATE host SET epoch = ?, facts = ?, seen_at = ?, unreachable_since = NULL"
            " WHERE role = ?",
            [change.get("epoch", row["epoch"]), text, self.at, role],
        )
        if change:
            before = {"was_epoch": row["epoch"]} if "epoch" in change else {}
            self.event("host.seen", role, {**change, **before})

    def set_unreachable(self, role: str, flag: bool = True) -> None:
        """It did not answer. That is no verdict about what runs on it."""
        row = self._host(role)
        if flag != (row["unreachable_since"] is not None):
            since = self.at if flag else None
            self._conn.execute(
                "UPDATE host SET unreachable_since = ? WHERE role = ?", [since, role]
            )
            self.event("host.unreachable" if flag else "host.reachable", role, {})

    def set_meta(self, key: str, value: str) -> None:
        """A named fact about the workspace (an approved digest, a budget)."""
        if self._meta(key) != value:
            self._put_meta(key, value)
            self.event("meta.set", key, {"value": value})

    def execute(self, query: str, values: Sequence[JSON] | dict[str, JSON]) -> sqlite3.Cursor:
        """For the modules of this package only; the event goes with it."""
        return self._conn.execute(query, values)

    # -- inside ---------------------------------------------------------------------------------

    def event(
        self, kind: str, subject: str, payload: Mapping[str, JSON], *, task: str | None = None
    ) -> None:
        """Append to the log of this transaction."""
        self._head = journal.append(
            self._conn,
            self._head,
            at=self.at,
            actor=self._actor,
            kind=kind,
            subject=subject,
            task=task,
            payload=payload,
        )

    def settle(self) -> None:
        """Move pending tasks to where their needs put them; part of every transaction."""
        if not self._graph_changed:
            return
        nodes = read_nodes(self._conn)
        found = readiness(nodes)
        for task in nodes:
            state, reason = found.get(task.id, (task.state, task.reason))
            if state is not task.state:
                self.put_state(task, state, reason)
            elif reason != task.reason:
                self._conn.execute("UPDATE task SET reason = ? WHERE id = ?", [reason, task.id])
                self.event("task.reason", task.id, {"reason": reason}, task=task.id)
        self._graph_changed = False

    def _insert(self, table: str, row: Mapping[str, JSON], *, verb: str = "INSERT") -> None:
        names = ", ".join(row)
        marks = ", ".join(f":{name}" for name in row)
        self._conn.execute(f"{verb} INTO {table} ({names}) VALUES ({marks})", row)

    def _host(self, role: str) -> sqlite3.Row:
        row: sqlite3.Row | None = self._conn.execute(
            "SELECT * FROM host WHERE role = ?", [role]
        ).fetchone()
        if row is None:
            raise UnknownHost(role)
        return row

    def _meta(self, key: str) -> str | None:
        row = self._conn.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return None if row is None else str(row[0])

    def _put_meta(self, key: str, value: str) -> None:
        self._conn.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", [key, value])
