"""Verbs by which a person decides: they change the graph and touch no host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.errors import Exit, RunbookError
from runbook.reasons import asks_of_gate, is_over, is_void
from runbook.requests import RETRY_BELOW, UNFINISHED
from runbook.verbs.base import wrong_state
from runbook.verbs.confirming import ConfirmVerbs
from state import Note, Snapshot, Task, TaskKind, TaskState
from state.graph import members
from state.telling import is_stopped, waits_for_yes

if TYPE_CHECKING:
    from collections.abc import Collection


class DecisionVerbs(ConfirmVerbs):
    """Retrying, skipping, approving, and keeping what was said."""

    def retry(self, task_id: str, *, reason: str = "", below: bool = False) -> Task:
        """Makes a failed, stale, skipped or stopped task ready again, as a new attempt.

        A done one as well, where somebody says why: its results are made anew. What needs it keeps
        what it made of the old ones; with `below`, all done work that needs it is made again too.
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        done = task.state is TaskState.DONE and task.kind is not TaskKind.SERVICE
        if done and not reason.strip():
            raise RunbookError(
                f"`{task_id}` is done; to make it again needs a reason.",
                hint=f'Say why: runbook retry {task_id} --reason "...".',
            )
        changed = done or (task.state is TaskState.STALE and not is_void(task))
        return self._decide(
            task_id,
            to=TaskState.READY,
            allowed={
                TaskState.FAILED,
                TaskState.STALE,
                TaskState.SKIPPED,
                *self._stopped(task_id),
                *({TaskState.DONE} if done else ()),
            },
            verb=RETRY_BELOW if below else "retry",
            reason=reason or f"retried by {self.store.actor}",
            why=reason,
            person=changed or below or is_stopped(task),
            also=made_of(snapshot, task_id) if below else (),
        )

    def retry_failed(self) -> tuple[str, ...]:
        """Makes every failed task ready again; their names."""
        reason = f"retried by {self.store.actor}"
        failed = {TaskState.FAILED}
        self._require_free(*(t.id for t in self.snapshot().tasks if t.state in failed))
        with self._write() as tx:
            names = tuple(task.id for task in tx.tasks() if task.state in failed)
            for name in names:
                tx.move_task(name, TaskState.READY, expect=failed, reason=reason)
        self.write_progress()
        return names

    def skip(self, task_id: str, reason: str) -> Task:
        """Leaves a task out, with a reason; what needs it may run."""
        if not reason.strip():
            raise RunbookError("Skipping needs a reason.", hint='Add --reason "...".')
        return self._decide(
            task_id,
            to=TaskState.SKIPPED,
            allowed=set(UNFINISHED),
            verb="skip",
            reason=f"{reason} ({self.store.actor})",
            why=reason,
            person=True,
        )

    def approve(self, task_id: str, reason: str) -> Task:
        """A person's yes to a gate, or to a task that a person does."""
        task = self.snapshot().task(task_id)
        if not waits_for_yes(task):
            raise wrong_state(task, "approve", {TaskState.GATED})
        self._person_decides("approve", task_id, reason)
        self._require_free(task_id)
        said = f"approved by {self.store.actor}" + (f": {reason}" if reason else "")
        if is_over(task) and not reason.strip():
            raise RunbookError(
                f"`{task_id}` is {task.reason}; going over it needs a reason.",
                hint=f'Say why: runbook gate approve {task_id} --reason "...".',
                exit_code=Exit.OVER_BUDGET,
            )
        with self._write() as tx:
            if is_over(task):
                tx.approve(task_id, about="budget", reason=said)
            if asks_of_gate(task) or not is_over(task):
                tx.approve(task_id, about="gate", reason=said)
            if task.kind is TaskKind.MANUAL:
                tx.move_task(task_id, TaskState.VERIFYING, expect={TaskState.GATED})
                moved = tx.move_task(
                    task_id, TaskState.DONE, expect={TaskState.VERIFYING}, reason=said
                )
            else:
                moved = tx.move_task(
                    task_id, TaskState.READY, expect={TaskState.GATED}, reason=said
                )
        self.write_progress()
        return moved

    def redo(self, task_ids: Collection[str] = ()) -> tuple[str, ...]:
        """Makes stale tasks (these, also by their family, or all) ready again; their names."""
        self._only_a_person("decide what runs again")
        stale = {TaskState.STALE}
        snapshot = self.snapshot()
        named = {task.id for name in task_ids for task in members(snapshot, name)}
        chosen = named or {t.id for t in snapshot.tasks if t.state in stale}
        self._require_free(*chosen)
        with self._write() as tx:
            names = tuple(
                task.id for task in tx.tasks() if task.state in stale and task.id in chosen
            )
            for name in names:
                reason = "its results are no longer what they were"
                tx.move_task(name, TaskState.READY, expect=stale, reason=reason)
        self.write_progress()
        return names

    def note(self, text: str, *, task: str | None = None, decision: bool = False) -> Note:
        """Keeps a person's words, on a task or on the run."""
        with self._write() as tx:
            note = tx.add_note(text, task=task, decision=decision)
        self.write_progress()
        return note

    def _stopped(self, task_id: str) -> set[TaskState]:
        """Where a stopped task may be: a service that ended well, or what a person stopped."""
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        ended = {TaskState.DONE} if task.kind is TaskKind.SERVICE else set()
        return ended | ({TaskState.GATED} if is_stopped(task) else set())


def made_of(snapshot: Snapshot, task_id: str) -> tuple[Task, ...]:
    """Done work that needs this task, directly or not."""
    below = {task_id}
    while True:
        more = {t.id for t in snapshot.tasks if below & {need.task for need in t.needs}} - below
        if not more:
            break
        below |= more
    return tuple(
        task
        for task in snapshot.tasks
        if task.id in below - {task_id}
        and task.state in {TaskState.DONE, TaskState.STALE}
        and task.kind is not TaskKind.SERVICE
    )
