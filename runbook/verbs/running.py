"""Verbs that make work happen on hosts, or end it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from remote import RemoteError, Unreachable
from runbook.engine import elsewhere
from runbook.engine.launching import CONTROL
from runbook.engine.observe import live_attempts
from runbook.engine.reconcile import Seen, chosen, look_again
from runbook.engine.runner import Engine, needed_for
from runbook.engine.stopping import ended_before, live_attempt, stop_attempt
from runbook.engine.watch import Once, Watch
from runbook.errors import CannotStart, Exit, RunbookError
from runbook.placement import place
from runbook.reader import ENGINE
from runbook.reasons import PENDING_STOP
from runbook.verbs.base import ignore, wrong_state
from runbook.verbs.confirming import ConfirmVerbs
from state import Attempt, AttemptState, LeaseHeld, Snapshot, Task, TaskState, Tx
from state.graph import members
from state.telling import STOPPED_BY, told_state

if TYPE_CHECKING:
    from collections.abc import Collection

    from remote import TaskOwner
    from runbook.engine.events import Listener
    from runbook.views import RunResult


FIRST_ASKED = 20
"""So many tasks that could start are asked about before a run; each is asked about at its start."""


class RunVerbs(ConfirmVerbs):
    """Running, watching, stopping, giving up what was lost."""

    def run(
        self,
        *,
        until: str | None = None,
        only: Collection[str] = (),
        stop_event: threading.Event | None = None,
        listen: Listener = ignore,
    ) -> RunResult:
        """Advances the graph until nothing can move. Blocks.

        Args:
            until: only what this task needs, and the task itself.
            only: only these tasks.
            stop_event: set it to leave; what runs on hosts goes on.

        Raises:
            LeaseHeld: somebody else advances the graph.
        """
        self._compare_revision()
        self.require_approved()
        self._require_free()
        snapshot = self.snapshot()
        scope = frozenset(task.id for name in only for task in members(snapshot, name))
        if until is not None:
            scope |= needed_for(snapshot, [task.id for task in members(snapshot, until)])
        self._require_newest(scope)
        holder = f"{self.store.actor} (pid {os.getpid()})"
        lease = self.store.acquire(ENGINE, holder)
        try:
            world = replace(self._world(listen), lease=lease)
            engine = Engine(world, scope=scope)
            return engine.run(stop_event or threading.Event(), moved=self._keep_progress)
        finally:
            self.store.release(lease)
            self.write_progress()

    def watch(
        self,
        *,
        until_done: bool = False,
        stop_event: threading.Event | None = None,
        listen: Listener = ignore,
    ) -> RunResult:
        """Advances the graph and stays: waits for new work, decisions, silent hosts. Blocks.

        Args:
            until_done: leave once every task is done.
            stop_event: set it to leave; what runs on hosts goes on.

        Raises:
            LeaseHeld: somebody else advances the graph.
        """
        self._compare_revision()
        self.require_approved()
        self._require_free()
        self._require_newest(frozenset())
        lease = self.store.acquire(ENGINE, f"{self.store.actor} (watch, pid {os.getpid()})")
        try:
            engine = Engine(replace(self._world(Once(listen)), lease=lease))
            watch = Watch(
                engine,
                changed=self.changed,
                moved=self._keep_progress,
                rests=self._settle_progress,
                until_done=until_done,
            )
            return watch.run(stop_event or threading.Event())
        finally:
            self.store.release(lease)
            self.write_progress()

    def reconcile(self, name: str = "") -> tuple[Seen, ...]:
        """Looks at all attempts that may run, again and now; starts and stops nothing.

        Args:
            name: a task, a family of tasks, or a host role; all when empty.

        Raises:
            RunbookError: somebody advances the graph, and looks all the time.
        """
        self._compare_revision()
        self._require_free()
        snapshot = self.snapshot()
        looked = chosen(snapshot, name)
        if self.dry_run:
            asked = [one for task in looked if (one := snapshot.latest_attempt(task.id))]
            self.would += [f"ask {one.host} about attempt {one.id} of {one.task}" for one in asked]
            return ()
        if not looked and not self.store.is_live(ENGINE):
            return ()  # and no event, which would part this history from a copy of it
        try:
            lease = self.store.acquire(ENGINE, f"{self.store.actor} (reconcile, pid {os.getpid()})")
        except LeaseHeld as error:
            raise RunbookError(
                f"{error.holder} advances the graph, and looks at everything that runs all the "
                "time.",
                hint="`runbook status` shows what it saw last. To look by yourself, end it first: "
                "its jobs go on.",
                exit_code=Exit.CONFLICT,
            ) from error
        try:
            world = replace(self._world(ignore), lease=lease, may_start=False)
            return look_again(world, name)
        finally:
            self.store.release(lease)
            self.write_progress()

    def stop(self, task_id: str, *, reason: str = "", listen: Listener = ignore) -> str:
        """Stops a task's job and verifies it. Returns what came of it, in words.

        Args:
            reason: why; it is told with the stop.

        Raises:
            RunbookError: nothing of the task runs, or something survived (exit code 3).
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        attempt = live_attempt(snapshot, task)
        if attempt is None or attempt.detail.get(CONTROL):
            raise RunbookError(
                f"Nothing of `{task_id}` runs: it is {told_state(task)}.",
                hint="`runbook status` shows what does.",
            )
        self._person_decides("stop", task_id, reason)
        self._require_free(task_id)
        if self.dry_run:
            self.would += [stopping(task, attempt)]
            return f"{task_id} would be stopped"
        host = self._hosts.of_role(snapshot, attempt.host)
        reason = f"{STOPPED_BY}{self.store.actor}" + (f": {reason}" if reason else "")
        try:
            report = stop_attempt(
                self._world(listen), task, attempt, host, then=TaskState.GATED, reason=reason
            )
        except Unreachable as error:
            self._hosts.failed(attempt.host)
            with self.store.write() as tx:
                tx.set_meta(PENDING_STOP + task_id, attempt.id)
            error.hint = f"the stop is written down: `run` sees it through; {error.hint}"
            raise
        finally:
            self.write_progress()
        if report.state != "stopped":
            raise RunbookError(
                f"`{task_id}` is not fully stopped: {self.snapshot().task(task_id).reason}.",
                hint="The survivors are named in `runbook status --json`; stop again to try again.",
                exit_code=Exit.TASK_FAILED,
            )
        if ended_before(task, report):
            engine = self.engine_holder(self.snapshot())
            who = f"{engine} records" if engine else "`runbook run` records"
            return f"{task_id} had ended before the stop came: {who} its outcome"
        return f"{task_id} stopped and verified: no process of it is left"

    def supersede(self, task_id: str, *, reason: str) -> Task:
        """Gives a lost attempt up for a new one. The lost one is burned or swept first.

        Raises:
            Unreachable: its host does not answer, so nobody knows whether it still runs.
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        attempt = snapshot.latest_attempt(task_id)
        if self.dry_run:
            return self._foretell_superseding(snapshot, task, reason)
        theirs = self._run_elsewhere(snapshot, task)
        if task.state in elsewhere.NOT_STARTED and theirs is not None:
            return self._give_up(task, theirs, reason)
        if task.state is not TaskState.ATTENTION or attempt is None:
            raise wrong_state(task, "supersede", {TaskState.ATTENTION})
        self._person_decides("supersede", task_id, reason)
        self._require_free(task_id)
        if attempt.detail.get("job"):
            host = self._hosts.of_role(snapshot, attempt.host)
            host.burn(attempt.id)
            job = attempt.detail["job"]
            report = host.stop(attempt.id, grace_s=float(job["grace_s"]), ports=job["ports"])
            if report.state != "stopped":
                raise RunbookError(
                    f"`{task_id}`: something of the lost attempt still runs.",
                    hint=f"Survivors: {[dict(row) for row in report.survivors]}.",
                    exit_code=Exit.CONFLICT,
                )
        with self._write() as tx:
            if theirs is not None:
                self._record_given_up(tx, task, theirs, reason)
            moved = _ready_again(tx, attempt, reason)
        self.write_progress()
        return moved

    def _foretell_superseding(self, snapshot: Snapshot, task: Task, reason: str) -> Task:
        """What superseding would do, by the graph alone; and what only the host can tell."""
        attempt = snapshot.latest_attempt(task.id)
        foreign = bool(task.role) and elsewhere.may_have_run(self.workspace, snapshot, task)
        lost = attempt if task.state is TaskState.ATTENTION else None
        if lost is None and not (foreign and task.state in elsewhere.NOT_STARTED):
            raise wrong_state(task, "supersede", {TaskState.ATTENTION})
        self._require_free(task.id)
        unseen = []
        if foreign:
            self.would.append(
                f"ask {task.role} whether another workspace ran {task.id}: one that runs there is "
                "left alone (exit 6), one that ended is written down and run a second time"
            )
            unseen.append("whether another workspace runs it, or ran it")
        if lost is not None and lost.detail.get("job"):
            self.would.append(f"burn attempt {lost.id}, then {stopping(task, lost)}")
            unseen.append("what is left of it there")
        if unseen:
            host = lost.host if lost is not None else task.role
            about = ", ".join((f"whether {host} answers", *unseen))
            self.would.append(f"find out only then, as nothing was asked of it now: {about}")
        if lost is None:
            return task
        with self._write() as tx:
            return _ready_again(tx, lost, reason)

    def _require_newest(self, scope: frozenset[str]) -> None:
        """Refuses to run a state of which another copy went on, before anything is recorded.

        Even who advances the graph is an event: with one of our own the copy could not be pulled.

        Raises:
            RunElsewhere: a task that would start now, or right after what runs, was started from
                another workspace.
        """
        snapshot = self.snapshot()
        if not self.workspace.share_file.exists():
            return
        silent: set[str | None] = set()
        for task in [task for task in _coming_next(snapshot, scope) if task.role][:FIRST_ASKED]:
            if task.role in silent:
                continue
            try:
                host = self._hosts.of_role(snapshot, task.role or "")
                elsewhere.require_ours(self._world(), snapshot, task, host)
            except elsewhere.RunElsewhere:
                raise
            except (CannotStart, RemoteError):
                silent.add(task.role)  # the run says so, and goes on with the others

    def _run_elsewhere(self, snapshot: Snapshot, task: Task) -> TaskOwner | None:
        """What another workspace ran or runs of the task, where this one started nothing itself."""
        if not task.role or not elsewhere.may_have_run(self.workspace, snapshot, task):
            return None
        host = self._hosts.of_role(snapshot, task.role)
        owner = elsewhere.foreign_owner(snapshot, task, host)
        if owner is not None and owner.status.state in ("running", "published"):
            raise RunbookError(
                elsewhere.told(task.id, owner),
                hint="Follow it from there, or stop it there first; then `runbook pull` here.",
                exit_code=Exit.CONFLICT,
            )
        return owner

    def _give_up(self, task: Task, theirs: TaskOwner, reason: str) -> Task:
        """The task is started here although another workspace ran it; that is kept as a note."""
        self._person_decides("supersede", task.id, reason)
        self._require_free(task.id)
        with self._write() as tx:
            self._record_given_up(tx, task, theirs, reason)
        self.write_progress()
        return task

    def _record_given_up(self, tx: Tx, task: Task, theirs: TaskOwner, reason: str) -> None:
        said = elsewhere.told(task.id, theirs)
        tx.set_meta(elsewhere.GIVEN_UP + task.id, theirs.attempt)
        tx.add_note(f"Run a second time: {said} {reason}", task=task.id, decision=True)


def _coming_next(snapshot: Snapshot, scope: frozenset[str]) -> list[Task]:
    """What a run of these tasks (none: of all) would start now, and right after what runs."""
    live = {task.id for task, _ in live_attempts(snapshot)}
    after = [
        task
        for task in snapshot.tasks
        if task.state is TaskState.BLOCKED and not live.isdisjoint(n.task for n in task.needs)
    ]
    ready = place(snapshot, wanted=lambda task: not scope or task.id in scope).start
    return [*ready, *(task for task in after if not scope or task.id in scope)]


def _ready_again(tx: Tx, attempt: Attempt, reason: str) -> Task:
    if attempt.state is AttemptState.STOP_INCOMPLETE:
        tx.move_attempt(attempt.id, AttemptState.STOPPED, expect={attempt.state})
    expect = {TaskState.ATTENTION}
    return tx.move_task(attempt.task, TaskState.READY, expect=expect, reason=reason)


def stopping(task: Task, attempt: Attempt) -> str:
    """What a stop does, in words."""
    job = attempt.detail.get("job") or {}
    ports = "".join(f", port {port} free" for port in job.get("ports") or ())
    return (
        f"stop attempt {attempt.id} of {task.id} on {attempt.host}: TERM to its process group, "
        f"KILL after {job.get('grace_s', 0):g} s, then verify: no process of it left{ports}"
    )
