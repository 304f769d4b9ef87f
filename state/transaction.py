"""The inside of a write transaction: rows as they are now, a move with its event, settling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state import ids, journal
from state.errors import StateMoved, UnknownAttempt, UnknownTask
from state.graph import readiness
from state.reading import attempt_from, read_near, read_nodes, task_from

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from state.model import JSON, Attempt, Task, TaskState
    from state.reading import GraphNode


class Transaction:
    """One `BEGIN IMMEDIATE`; nothing in here may wait for a host or a person."""

    def __init__(
        self, conn: sqlite3.Connection, *, actor: str, clock: Callable[[], datetime]
    ) -> None:
        self._conn = conn
        self._actor = journal.clean(actor)
        self._moment = clock()  # one time for everything that happens in one transaction
        self._head = journal.head(conn)
        self._graph_changed = False
        self._moved: set[str] = set()
        self.at = ids.stamp(self._moment)

    @property
    def revision(self) -> int:
        """The number of the last event, those of this transaction included."""
        return self._head[0]

    @property
    def actor(self) -> str:
        """Who writes, as every event of this transaction tells."""
        return self._actor

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
        self._moved.add(task.id)

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
        if self._graph_changed:
            nodes = read_nodes(self._conn)
            found = readiness(nodes)
        elif self._moved:
            near, nodes = read_near(self._conn, self._moved)
            found = readiness(nodes, only=near)
        else:
            return
        for task in nodes:
            state, reason = found.get(task.id, (task.state, task.reason))
            if state is not task.state:
                self.put_state(task, state, reason)
            elif reason != task.reason:
                self._conn.execute("UPDATE task SET reason = ? WHERE id = ?", [reason, task.id])
                self.event("task.reason", task.id, {"reason": reason}, task=task.id)
        self._graph_changed = False
        self._moved.clear()

    def execute(self, query: str, values: Sequence[JSON] | dict[str, JSON]) -> sqlite3.Cursor:
        """For the modules of this package only; the event goes with it."""
        return self._conn.execute(query, values)

    def _insert(self, table: str, row: Mapping[str, JSON], *, verb: str = "INSERT") -> None:
        names = ", ".join(row)
        marks = ", ".join(f":{name}" for name in row)
        self._conn.execute(f"{verb} INTO {table} ({names}) VALUES ({marks})", row)

    def _meta(self, key: str) -> str | None:
        row = self._conn.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return None if row is None else str(row[0])

    def _put_meta(self, key: str, value: str) -> None:
        self._conn.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", [key, value])
