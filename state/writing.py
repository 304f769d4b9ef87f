"""`Tx`: every change there is, each a guarded UPDATE or INSERT with its event beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state import ids, journal
from state.errors import NotRunnable, PreviousAttemptLive, StateMoved
from state.graph import unmet
from state.loading import load_tasks
from state.model import (
    JSON,
    Attempt,
    AttemptState,
    FailureClass,
    LoadReport,
    Task,
    TaskKind,
    TaskState,
)
from state.recording import Recording
from state.transitions import BEGINS, RUNNING, TERMINAL, check_attempt_move, check_task_move

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from state.model import TaskDef

STARTED = frozenset({AttemptState.STARTED, AttemptState.RUNNING})


class Tx(Recording):
    """One write transaction: the verbs that move tasks and attempts, and those of `Recording`."""

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
            [digest, journal.clean(path), journal.clean(text), self.at, self._actor],
        )
        head = {
            "runbook_hash": digest,
            "runbook_path": journal.clean(path),
            "name": journal.clean(name),
            "title": journal.clean(title),
            "goal": journal.clean(goal),
        }
        if any(self._meta(key) != value for key, value in head.items()):
            for key, value in head.items():
                self._put_meta(key, value)
            self.event("runbook.loaded", digest, head)
        report = load_tasks(self, tasks)
        self._graph_changed = True
        return report

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

    def set_out(self, task_id: str, out: Mapping[str, JSON]) -> None:
        """What the task hands to those after it: `${task.x.out.key}`."""
        task, text = self.task(task_id), journal.canonical(dict(out))
        if journal.canonical(task.out) != text:
            self._conn.execute("UPDATE task SET out = ? WHERE id = ?", [text, task_id])
            self.event("task.out", task_id, {"out": json.loads(text)}, task=task_id)

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
