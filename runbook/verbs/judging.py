"""Judging a failed task again, without doing its work again.

Its job ended well and a check did not hold. The check may have been too strict, or what it looks at
was mended since: the checks as they are defined now are asked. That says something about the task
only while the work itself is defined as it was when it was done.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from runbook.check_words import check_name
from runbook.engine.epochs import see_host
from runbook.engine.finish import ask, keep_decision, record_checks, went_well
from runbook.engine.planning import make_context, plan_task
from runbook.errors import CannotStart, Exit, RunbookError
from runbook.reasons import JUDGED, failed_by_checks
from runbook.verbs.confirming import ConfirmVerbs
from state import Attempt, Snapshot, Task, TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote import CheckResult, Host
    from runbook.steps.base import StepPlan

JUDGEMENT = frozenset({"done_when", "retry", "title", "phase"})
"""What may have changed in a definition without the work being another."""


class JudgeVerbs(ConfirmVerbs):
    """A failed task, judged by the checks as they are defined now."""

    def judge_again(self, snapshot: Snapshot, task: Task) -> list[dict[str, Any]]:
        """Asks the present checks of a task that failed by its checks alone; done if they hold.

        Raises:
            RunbookError: it failed otherwise, or its work is defined otherwise now.
        """
        attempt = judged_attempt(snapshot, task)
        changed = task.definition_hash != attempt.definition_hash
        if changed:
            self._require_same_work(task, attempt)
        self._require_free(task.id)
        self.require_approved()
        if changed:  # nobody loosens a check and passes by it without a person
            self._person_decides("verify", task.id, "its checks were changed after it failed")
        if self.dry_run:  # asks no host; its step may have more checks than the file
            asked = [check_name(check) for check in task.definition.get("done_when") or ()]
            self.would += [f"check on {task.role}: {task.id}: {name}" for name in asked]
            return []
        host = self._hosts.of_role(snapshot, task.role or "")
        epoch = see_host(self._world(), snapshot, task.role, host)
        plan = self._present_plan(self.snapshot(), task, host)
        _require_same_job(task, attempt, plan)
        checks = [{name: dict(args)} for check in plan.done_when for name, args in check.items()]
        results = ask(host, checks, attempt) if checks else ()
        out = host.read_out(attempt.id) or {}
        self._record(task, attempt, epoch, checks, results, {**plan.out, **out})
        return [
            {"check": check_name(c), "verdict": r.verdict, "evidence": dict(r.evidence)}
            for c, r in zip(checks, results, strict=True)
        ]

    def _present_plan(self, snapshot: Snapshot, task: Task, host: Host) -> StepPlan:
        context = make_context(self._world(), snapshot, task, host=host, stop_task=_stops_nothing)
        return plan_task(task, context)

    def _record(
        self,
        task: Task,
        attempt: Attempt,
        epoch: str | None,
        checks: Sequence[Mapping[str, Any]],
        results: Sequence[CheckResult],
        out: Mapping[str, Any],
    ) -> None:
        """Evidence and verdict in one transaction; not when the task moved meanwhile."""
        holds = all(result.verdict == "pass" for result in results)
        evidence = went_well(self._world(), attempt, out)
        known = {"checks": checks, "definition": task.definition_hash, "evidence": evidence}
        reason = (
            f"verified again by {self.store.actor}: the checks of definition "
            f"{task.definition_hash[:12]} hold for attempt {attempt.number}"
        )
        with self._write() as tx:
            now, latest = tx.task(task.id), tx.latest_attempt(task.id)
            same = latest is not None and latest.id == attempt.id
            if not same or now.definition_hash != task.definition_hash:
                raise RunbookError(
                    f"`{task.id}` moved on while its checks were asked; nothing was recorded.",
                    hint=f"Look first: `runbook status {task.id}`.",
                    exit_code=Exit.CONFLICT,
                )
            asked = zip(checks, results, strict=True)
            record_checks(tx, task.id, "done", asked, attempt=attempt.id, epoch=epoch)
            if not holds:
                return
            tx.set_out(task.id, out)
            keep_decision(tx, task, out)
            tx.set_meta(JUDGED + attempt.id, json.dumps(known))
            tx.move_task(task.id, TaskState.VERIFYING, expect={TaskState.FAILED}, reason=reason)
            tx.move_task(task.id, TaskState.DONE, expect={TaskState.VERIFYING}, reason=reason)

    def _require_same_work(self, task: Task, attempt: Attempt) -> None:
        """Refuses what was done by a definition that differs in more than its checks."""
        # Its arguments are compared by the job that they make.
        now = {**task.definition, "with": None}
        then = {**self._definition_of(attempt), "with": None}
        other = sorted(
            key for key in (now.keys() | then.keys()) - JUDGEMENT if now.get(key) != then.get(key)
        )
        if other:
            raise _other_work(task, f"its {', '.join(f'`{key}`' for key in other)} changed")

    def _definition_of(self, attempt: Attempt) -> Mapping[str, Any]:
        """As its task was defined when the attempt began."""
        found: Mapping[str, Any] = {}
        for event in self.events(task=attempt.task, limit=-1):
            if event.subject == attempt.id:
                break
            found = event.payload.get("definition", found)
        return found


def judged_attempt(snapshot: Snapshot, task: Task) -> Attempt:
    """The attempt of a failed task that can be judged again.

    Raises:
        RunbookError: there is none.
    """
    attempt = snapshot.latest_attempt(task.id)
    if not failed_by_checks(attempt, task):
        raise RunbookError(
            f"`{task.id}` did not fail by its checks ({task.reason}): they have nothing to judge.",
            hint=f"Find the cause, then `runbook retry {task.id}`.",
        )
    return attempt


def _require_same_job(task: Task, attempt: Attempt, plan: StepPlan) -> None:
    did, does = attempt.detail.get("job") or {}, plan.job
    then = [did.get(name) for name in ("argv", "env", "cwd")]
    if does is None or [[*does.argv], {**does.env}, does.cwd] != then:
        raise _other_work(task, "what it runs changed")


def _other_work(task: Task, why: str) -> RunbookError:
    return RunbookError(
        f"`{task.id}` cannot be judged again: {why} since its last attempt, not only its checks.",
        hint=f"The work itself is to be done again: `runbook retry {task.id}`.",
        exit_code=Exit.CONFLICT,
    )


def _stops_nothing(task_id: str) -> Any:
    raise CannotStart(f"{task_id} is not stopped by a look.")
