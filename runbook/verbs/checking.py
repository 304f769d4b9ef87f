"""Verbs that look at what is recorded, and at what a task would do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from shlex import quote
from typing import TYPE_CHECKING, Any

from remote import RemoteError, Unreachable
from runbook.approvals import gate_question, over_budget
from runbook.check_words import bounds, check_name
from runbook.engine.epochs import see_host
from runbook.engine.finish import CHECK_LIMIT_S, record_checks
from runbook.engine.hosts import LeftAlone
from runbook.engine.observe import live_attempts
from runbook.engine.planning import Foreseen, make_context, plan_task
from runbook.engine.runner import needed_for
from runbook.errors import CannotStart, RunbookError
from runbook.placement import place
from runbook.reasons import done_checks, is_void
from runbook.steps.base import shown
from runbook.verbs.confirming import NeedsConfirmation
from runbook.verbs.judging import JudgeVerbs
from state import ClaimHeld, Snapshot, Task, TaskKind, TaskState
from state.graph import family_of, is_met, members, topological
from state.telling import is_stopped, told_state
from state.transitions import PENDING, RUNNING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What looking again came to, by task."""

    tasks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Of those that were judged, each check with its verdict and evidence."""
    left: dict[str, str] = field(default_factory=dict)
    """Those that were named and not judged, and why."""
    unanswered: dict[str, str] = field(default_factory=dict)
    """Those whose host gave no answer, or a wrong one, and what was found."""


class CheckVerbs(JudgeVerbs):
    """Planning one task, verifying again."""

    def plan_task(self, task_id: str) -> tuple[str, ...]:
        """What the task will do, in words and commands; what cannot be known yet is said."""
        snapshot = self.snapshot()
        waits = place(snapshot).waiting.get(task_id)
        lines = self._foretold(snapshot, snapshot.task(task_id), Foreseen(_outs(snapshot)))
        return (*lines, *((waits,) if waits else ()))

    def _foretold(self, snapshot: Snapshot, task: Task, outs: Foreseen) -> tuple[str, ...]:
        """Of one task; what the others before it will give is in `outs`, and its own then too."""
        context = make_context(self._world(), snapshot, task, host=None, stop_task=_not_now)
        context = replace(
            context,
            # A machine that is not known yet, and what is put there when it is.
            root=context.root or "${host.root}",
            work=context.work or "${host.work}",
            ship=lambda name: f"<{name} on the host>",
            outs=outs,
        )
        try:
            plan = plan_task(task, context)
        except CannotStart as error:
            return (f"not known yet: {error}",)
        outs.learn(task.id, plan.out)
        when = "ready when" if task.kind is TaskKind.SERVICE else "done when"
        checks = plan.ready_when if task.kind is TaskKind.SERVICE else plan.done_when
        return (*plan.summary, *(f"{when}: {_asked(check)}" for check in checks))

    def verify(self, task_ids: Collection[str] = ()) -> Verified:
        """Runs the recorded checks of done tasks again. One that no longer holds turns stale.

        What turned stale only because its host was rebooted or replaced is done again when all its
        checks still hold. So is a failed task, when it or its family is named: see `judge_again`.
        What keeps one of several from being judged keeps none of the others.
        """
        snapshot = self.snapshot()
        named = [task for name in task_ids for task in members(snapshot, name)]
        chosen = [task for task in named or snapshot.tasks if not task.removed]
        names = list(dict.fromkeys(task.id for task in chosen))
        found = Verified()
        for name in names:
            task = self.snapshot().task(name)
            judged = bool(named) and task.state is TaskState.FAILED
            if not judged and (why := _nothing_to_ask(task)):
                if named:
                    found.left[name] = why
                continue
            try:
                rows = self._look_again(task, judged=judged)
                if not self.dry_run:
                    found.tasks[name] = rows
            except RemoteError as error:
                if isinstance(error, Unreachable) and not isinstance(error, LeftAlone):
                    self._hosts.failed(task.role or "")
                if len(names) == 1:
                    raise
                found.unanswered[name] = str(error)
            except (RunbookError, ClaimHeld) as error:
                if len(names) == 1:
                    raise
                hint = f" {error.hint}" if isinstance(error, NeedsConfirmation) else ""
                found.left[name] = f"{error}{hint}"
        if self.dry_run:
            self.would += [f"not judge {name}: {why}" for name, why in found.left.items()]
        self.write_progress()
        return found

    def _look_again(self, task: Task, *, judged: bool) -> list[dict[str, Any]]:
        """One task; `judged`: it has failed."""
        snapshot = self.snapshot()  # meeting its host may have made it stale
        if judged:
            return self.judge_again(snapshot, task)
        if not self.dry_run:
            return self._verify_one(snapshot, task)
        self.would += [f"check on {task.role}: {check}" for check in self._asks(task)]
        return []

    def _asks(self, task: Task) -> list[str]:
        snapshot = self.snapshot()
        checks = done_checks(snapshot, snapshot.latest_attempt(task.id))
        return [f"{task.id}: {check_name(check)}" for check in checks]

    def preview(self, *, until: str | None = None, only: Collection[str] = ()) -> None:
        """Puts into `would` all that a run would start, with its commands. Asks no host.

        What waits behind a task that failed, or is stale or lost, is left out: nobody knows yet
        what a person will decide about that one.
        """
        snapshot = self.snapshot()
        self._compare_revision()
        self._require_free()
        scope = {task.id for name in only for task in members(snapshot, name)}
        if until is not None:
            scope |= needed_for(snapshot, [task.id for task in members(snapshot, until)])
        for task, attempt in live_attempts(snapshot):
            self.would.append(f"adopt attempt {attempt.id} of {task.id} on {attempt.host}")
        outs = Foreseen(_outs(snapshot))
        for task in coming(snapshot):
            if not scope or task.id in scope:
                self.would.append(_announced(snapshot, task))
                self.would += [f"  {line}" for line in self._foretold(snapshot, task, outs)]

    def _verify_one(self, snapshot: Snapshot, task: Task) -> list[dict[str, Any]]:
        checks = done_checks(snapshot, snapshot.latest_attempt(task.id))
        host = self._hosts.of_role(snapshot, task.role or "")
        epoch = see_host(self._world(), snapshot, task.role, host)
        results = host.check(checks, timeout=CHECK_LIMIT_S) if checks else []
        rows = [
            {"check": check_name(c), "verdict": r.verdict, "evidence": dict(r.evidence)}
            for c, r in zip(checks, results, strict=True)
        ]
        failed = [row for row in rows if row["verdict"] == "fail"]
        holds = bool(rows) and all(row["verdict"] == "pass" for row in rows)
        task = self.snapshot().task(task.id)
        with self._write() as tx:
            asked = zip(checks, results, strict=True)
            record_checks(tx, task.id, "done", asked, epoch=epoch)
            if failed and task.state is TaskState.DONE:
                reason = f"no longer holds: {failed[0]['check']}"
                tx.move_task(task.id, TaskState.STALE, expect={TaskState.DONE}, reason=reason)
            elif holds and is_void(task) and task.began_hash == task.definition_hash:
                reason = "its checks hold on the host as it is now"
                tx.move_task(task.id, TaskState.VERIFYING, expect={TaskState.STALE}, reason=reason)
                tx.move_task(task.id, TaskState.DONE, expect={TaskState.VERIFYING}, reason=reason)
        return rows


def _nothing_to_ask(task: Task) -> str:
    """Why a task has no checks that could be asked again; empty when it has."""
    if task.kind is TaskKind.SERVICE:
        return f"it is a server ({told_state(task)}), which is looked at as long as it serves"
    if not task.role:
        return f"it runs on no host ({told_state(task)})"
    if task.state is TaskState.DONE or is_void(task):
        return ""
    return f"it is {told_state(task)}" + (f" ({task.reason})" if task.reason else "")


def coming(snapshot: Snapshot) -> Iterator[Task]:
    """Tasks that will run once all goes well, each after what it needs."""
    by_id = {task.id: task for task in snapshot.tasks if not task.removed}
    under_way = {task.id for task in by_id.values() if task.state in RUNNING}
    for name in topological(tuple(by_id.values())):
        task = by_id[name]
        will = all(n.task in under_way or is_met(n, by_id.get(n.task)) for n in task.needs)
        if will and (task.state in PENDING or task.state is TaskState.GATED):
            under_way.add(name)
            yield task


def _announced(snapshot: Snapshot, task: Task) -> str:
    """`start train on train-box, after tokenize, once a person said yes`."""
    by_id = {other.id: other for other in snapshot.tasks}
    waits = [n.task for n in task.needs if not is_met(n, by_id.get(n.task))]
    where = f" on {task.role}" if task.role else ""
    after = f", after {', '.join(_short(waits))}" if waits else ""
    # What a person does is told as its plan already.
    asked = "" if task.kind is TaskKind.MANUAL else gate_question(snapshot, task)
    why = over_budget(snapshot, task, datetime.now(UTC))
    yes = [f'"{asked}"'] if asked else []
    yes += [f"this ({why})"] if why else []
    asks = f", once a person says yes to {' and to '.join(yes)}" if yes else ""
    if is_stopped(task):
        asks = f", once `runbook retry {quote(task.id)}` says so ({task.reason}){asks}"
    return f"start {task.id}{where}{after}{asks}"


def _asked(check: Mapping[str, Any]) -> str:
    """A check with what it asks for."""
    ((kind, args),) = check.items()
    if kind == "json_metric":
        return f"{args['key']} is {bounds(args)} in {args['path']}"
    if kind == "rows_at_least":
        return f"at least {args['rows']} rows in {args['glob']}"
    if kind == "http_identity":
        return f"{args['field']} is {args['equals']} at {args['url']}"
    if kind == "command":
        first, _, more = shown(args["argv"]).partition("\n")
        return f"{first} ..." if more else first
    return check_name(check)


def _short(names: Sequence[str]) -> list[str]:
    """Several of one family as `serve[*]`."""
    sizes = Counter(map(family_of, names))
    told = (n if sizes[family_of(n)] == 1 else f"{family_of(n)}[*]" for n in names)
    return list(dict.fromkeys(told))


def _outs(snapshot: Snapshot) -> dict[str, Mapping[str, Any]]:
    return {task.id: task.out for task in snapshot.tasks if task.out}


def _not_now(task_id: str) -> Any:
    raise CannotStart(f"{task_id} is not stopped by a plan.")
