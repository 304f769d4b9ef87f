"""Verbs that look at what is recorded, and at what a task would do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runbook.engine.finish import CHECK_LIMIT_S, check_name, record_checks
from runbook.engine.planning import make_context, plan_task
from runbook.engine.start import see_host
from runbook.errors import CannotStart
from runbook.verbs.base import Writer
from state import Snapshot, Task, TaskKind, TaskState

if TYPE_CHECKING:
    from collections.abc import Collection


class CheckVerbs(Writer):
    """Planning one task, verifying again."""

    def plan_task(self, task_id: str) -> tuple[str, ...]:
        """What the task will do, in words and commands; what cannot be known yet is said."""
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        try:
            context = make_context(self._world(), snapshot, task, host=None, stop_task=_not_now)
            context = replace(context, ship=lambda name: f"<{name} on the host>")
            plan = plan_task(task, context)
        except CannotStart as error:
            return (f"not known yet: {error}",)
        checks = [f"done when: {check_name(check)}" for check in plan.done_when]
        return (*plan.summary, *checks)

    def verify(self, task_ids: Collection[str] = ()) -> dict[str, list[dict[str, Any]]]:
        """Runs the recorded checks of done tasks again. One that no longer holds turns stale."""
        snapshot = self.snapshot()
        chosen = [snapshot.task(name) for name in task_ids] or list(snapshot.tasks)
        found = {}
        for task in chosen:
            if task.state is TaskState.DONE and task.role and task.kind is not TaskKind.SERVICE:
                found[task.id] = self._verify_one(snapshot, task)
        self.write_progress()
        return found

    def _verify_one(self, snapshot: Snapshot, task: Task) -> list[dict[str, Any]]:
        attempt = snapshot.latest_attempt(task.id)
        checks = list(attempt.detail.get("done_when") or []) if attempt else []
        host = self._hosts.of_role(snapshot, task.role or "")
        epoch = see_host(self._world(), snapshot, task.role, host)
        results = host.check(checks, timeout=CHECK_LIMIT_S) if checks else []
        rows = [
            {"check": check_name(c), "verdict": r.verdict, "evidence": dict(r.evidence)}
            for c, r in zip(checks, results, strict=True)
        ]
        failed = [row for row in rows if row["verdict"] == "fail"]
        with self._write() as tx:
            asked = zip(checks, results, strict=True)
            record_checks(tx, task.id, "done", asked, epoch=epoch)
            if failed:
                reason = f"no longer holds: {failed[0]['check']}"
                tx.move_task(task.id, TaskState.STALE, expect={TaskState.DONE}, reason=reason)
        return rows


def _not_now(task_id: str) -> Any:
    raise CannotStart(f"{task_id} is not stopped by a plan.")
