"""Every verb once. The CLI, the TUI and an MCP server are fronts over this class."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from remote import HostKeyUnknown, Unreachable
from runbook.engine.finish import CHECK_LIMIT_S, check_name, record_checks
from runbook.engine.hosts import Hosts
from runbook.engine.planning import make_context, plan_task
from runbook.engine.runner import Engine, needed_for
from runbook.engine.start import CONTROL, approval_key, see_host
from runbook.engine.stopping import live_attempt, stop_attempt
from runbook.engine.watch import Once, Watch
from runbook.engine.world import World
from runbook.errors import CannotStart, Exit, RunbookError
from runbook.reader import BRIEF_EVENTS, ENGINE, FILE_DIGEST, Reader
from runbook.workspace import Workspace, default_actor
from state import (
    AttemptState,
    HostBinding,
    LoadReport,
    Note,
    Snapshot,
    Store,
    Task,
    TaskKind,
    TaskState,
    Tx,
    open_store,
)
from state.mirror import Mirrored, is_current, write_progress
from state.progress_md import render

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from runbook.engine.events import Listener
    from runbook.plan import Runbook
from runbook.advice import next_action
from runbook.brief import render_brief
from runbook.views import RunResult, View


def ignore(_event: object) -> None:
    """A listener that does not care."""


class Service(Reader):
    """One client of one workspace. Not shared between threads that act at the same time."""

    def __init__(self, workspace: Workspace, store: Store) -> None:
        super().__init__(workspace, store)
        self._hosts = Hosts(workspace_id=store.snapshot().meta.workspace_id)

    @classmethod
    def create(cls, folder: Path, runbook: Runbook, *, actor: str | None = None) -> Self:
        """Makes (or finds) the workspace in `folder` and loads the runbook into it."""
        workspace = Workspace(folder.absolute())
        workspace.private.mkdir(parents=True, exist_ok=True)
        service = cls(workspace, open_store(workspace.database, actor=actor or default_actor()))
        service.load(runbook)
        return service

    def close(self) -> None:
        """Closes connections. Jobs on hosts go on."""
        self._hosts.close()
        super().close()

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

    # The runbook file.

    def load(self, runbook: Runbook) -> LoadReport:
        """Takes over a runbook file. Done work is never run again by this: it turns stale."""
        with self._write() as tx:
            report = tx.load_runbook(
                path=str(runbook.path),
                text=runbook.text,
                digest=runbook.digest,
                name=runbook.name,
                title=runbook.title,
                goal=runbook.goal,
                tasks=runbook.task_defs(),
            )
            tx.set_meta(FILE_DIGEST, sha256(runbook.text.encode()).hexdigest())
            tx.set_meta("phases", json.dumps(dict(runbook.phases)))
            tx.set_meta("params", json.dumps(dict(runbook.params), sort_keys=True))
            tx.set_meta("roles", json.dumps(dict(runbook.hosts)))
        self.write_progress()
        return report

    # Hosts.

    def bind(
        self, role: str, binding: HostBinding, *, accept_fingerprint: str = ""
    ) -> Mapping[str, Any]:
        """Puts a machine behind a role and records its facts; nothing changes if it is silent.

        The key that it proves to have is pinned to the role from now on.

        Args:
            accept_fingerprint: of a host key that known_hosts does not have (`SHA256:...`).

        Raises:
            RunbookError: the runbook has no such role.
            RemoteError: the machine does not answer, or its key is not trusted.
        """
        self._require_role(role)
        try:
            binding, epoch, facts = self._meet(binding)
        except HostKeyUnknown as error:
            if not accept_fingerprint or error.fingerprint != accept_fingerprint:
                raise
            binding, epoch, facts = self._meet(replace(binding, host_key=error.key))
        self._hosts.forget(role)
        with self._write() as tx:
            tx.bind_host(binding)
            tx.seen_host(role, epoch=epoch, facts=facts)
        self.write_progress()
        return facts

    def _require_role(self, role: str) -> None:
        roles = json.loads(self.snapshot().meta.extra.get("roles", "{}"))
        if role not in roles:
            raise RunbookError(
                f"The runbook has no host role `{role}`.",
                hint=f"Its roles: {', '.join(sorted(roles)) or 'none'}.",
            )

    def _meet(self, binding: HostBinding) -> tuple[HostBinding, str, Mapping[str, Any]]:
        host = self._hosts.meet(binding)
        try:
            epoch, facts = host.identity().epoch, host.facts()
            return replace(binding, host_key=host.transport.host_key or None), epoch, facts
        finally:
            host.close()

    def probe(self, role: str) -> Mapping[str, Any]:
        """Asks the host for its facts and records them."""
        self._require_role(role)
        snapshot = self.snapshot()
        host = self._hosts.of_role(snapshot, role)
        facts = host.facts()
        with self._write() as tx:
            tx.seen_host(role, epoch=host.identity().epoch, facts=facts)
        return facts

    # Acting.

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
        snapshot = self.snapshot()
        scope = frozenset(snapshot.task(name).id for name in only)
        if until is not None:
            scope |= needed_for(snapshot, [until])
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
        lease = self.store.acquire(ENGINE, f"{self.store.actor} (watch, pid {os.getpid()})")
        try:
            engine = Engine(replace(self._world(Once(listen)), lease=lease))
            watch = Watch(
                engine, changed=self.changed, moved=self._keep_progress, until_done=until_done
            )
            return watch.run(stop_event or threading.Event())
        finally:
            self.store.release(lease)
            self.write_progress()

    def stop(self, task_id: str, *, listen: Listener = ignore) -> str:
        """Stops a task's job and verifies it. Returns what came of it, in words.

        Raises:
            RunbookError: nothing of the task runs, or something survived (exit code 3).
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        attempt = live_attempt(snapshot, task)
        if attempt is None or attempt.detail.get(CONTROL):
            raise RunbookError(
                f"Nothing of `{task_id}` runs: it is {task.state}.",
                hint="`runbook status` shows what does.",
            )
        host = self._hosts.of_role(snapshot, task.role or "")
        reason = f"stopped by {self.store.actor}"
        try:
            report = stop_attempt(
                self._world(listen), task, attempt, host, then=TaskState.FAILED, reason=reason
            )
        except Unreachable:
            self._hosts.failed(task.role or "")
            raise
        finally:
            self.write_progress()
        if report.state != "stopped":
            raise RunbookError(
                f"`{task_id}` is not fully stopped: {self.snapshot().task(task_id).reason}.",
                hint="The survivors are named in `runbook status --json`; stop again to try again.",
                exit_code=Exit.TASK_FAILED,
            )
        return f"{task_id} stopped and verified: no process of it is left"

    def retry(self, task_id: str, *, reason: str = "") -> Task:
        """Makes a failed, stale, skipped or stopped task ready again, as a new attempt."""
        return self._decide(
            task_id,
            to=TaskState.READY,
            allowed={
                TaskState.FAILED,
                TaskState.STALE,
                TaskState.SKIPPED,
                *self._stopped_service(task_id),
            },
            verb="retry",
            reason=reason or f"retried by {self.store.actor}",
        )

    def retry_failed(self) -> tuple[str, ...]:
        """Makes every failed task ready again; their names."""
        reason = f"retried by {self.store.actor}"
        failed = {TaskState.FAILED}
        with self._write() as tx:
            names = tuple(task.id for task in tx.tasks() if task.state in failed)
            for name in names:
                tx.move_task(name, TaskState.READY, expect=failed, reason=reason)
        self.write_progress()
        return names

    def supersede(self, task_id: str, *, reason: str) -> Task:
        """Gives a lost attempt up for a new one. The lost one is burned or swept first.

        Raises:
            Unreachable: its host does not answer, so nobody knows whether it still runs.
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        attempt = snapshot.latest_attempt(task_id)
        if task.state is not TaskState.ATTENTION or attempt is None:
            raise _wrong_state(task, "supersede", {TaskState.ATTENTION})
        if attempt.detail.get("job"):
            host = self._hosts.of_role(snapshot, task.role or "")
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
            if attempt.state is AttemptState.STOP_INCOMPLETE:
                tx.move_attempt(attempt.id, AttemptState.STOPPED, expect={attempt.state})
            moved = tx.move_task(
                task_id, TaskState.READY, expect={TaskState.ATTENTION}, reason=reason
            )
        self.write_progress()
        return moved

    def skip(self, task_id: str, reason: str) -> Task:
        """Leaves a task out, with a reason; what needs it may run."""
        if not reason.strip():
            raise RunbookError("Skipping needs a reason.", hint='Add --reason "...".')
        return self._decide(
            task_id,
            to=TaskState.SKIPPED,
            allowed={
                TaskState.DRAFT,
                TaskState.BLOCKED,
                TaskState.READY,
                TaskState.GATED,
                TaskState.FAILED,
                TaskState.STALE,
                TaskState.ATTENTION,
            },
            verb="skip",
            reason=f"{reason} ({self.store.actor})",
        )

    def approve(self, task_id: str, reason: str) -> Task:
        """A person's yes to a gate, or to a task that a person does."""
        task = self.snapshot().task(task_id)
        if task.state is not TaskState.GATED:
            raise _wrong_state(task, "approve", {TaskState.GATED})
        said = f"approved by {self.store.actor}" + (f": {reason}" if reason else "")
        with self._write() as tx:
            tx.set_meta(approval_key(task), said)
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

    def redo(self, task_ids: Collection[str] = ()) -> tuple[str, ...]:
        """Makes stale tasks (these, or all) ready to run again; their names."""
        stale = {TaskState.STALE}
        with self._write() as tx:
            names = tuple(
                task.id
                for task in tx.tasks()
                if task.state in stale and (not task_ids or task.id in task_ids)
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

    # PROGRESS.md.

    def progress_body(self, snapshot: Snapshot) -> str:
        """The managed part of PROGRESS.md at one revision."""
        events = self.events(after=max(0, snapshot.revision - BRIEF_EVENTS))
        view = View(snapshot=snapshot, next=next_action(snapshot, engine=None))
        phases = json.loads(snapshot.meta.extra.get("phases", "{}"))
        return render(snapshot, brief=render_brief(view, events, titled=False), phases=phases)

    def write_progress(self, *, force: bool = False) -> Mirrored:
        """Brings PROGRESS.md up to date; an edit found in its managed part is kept as a note."""
        mirrored = self._mirror(force=force)
        # The note moved the revision, so the file is already old.
        return self._mirror(force=force) if mirrored.edit else mirrored

    def progress_is_current(self) -> bool:
        """Whether PROGRESS.md is exactly the rendering of the newest revision."""
        snapshot = self.snapshot()
        body = self.progress_body(snapshot)
        return is_current(self.workspace.progress_file, body, revision=snapshot.revision)

    def _mirror(self, *, force: bool) -> Mirrored:
        snapshot = self.snapshot()
        return write_progress(
            self.workspace.progress_file,
            self.progress_body(snapshot),
            revision=snapshot.revision,
            base=self.workspace.private / "progress.base.md",
            force=force,
            record=self._keep_edit,
        )

    def _keep_edit(self, edit: str, revision: int) -> None:
        with self.store.write() as tx:
            tx.add_note(f"edit found in PROGRESS.md at revision {revision}:\n{edit}")

    # Inside.

    def _compare_revision(self) -> None:
        """Only the comparison: the engine's own writes move the revision."""
        if self.expect_rev is not None:
            with self._write():
                pass

    def _write(self) -> AbstractContextManager[Tx]:
        expected, self.expect_rev = self.expect_rev, None
        return self.store.write(expect_rev=expected)

    def _world(self, listen: Listener = ignore) -> World:
        return World(
            workspace=self.workspace,
            store=self.store,
            hosts=self._hosts,
            lease=None,
            listen=listen,
        )

    def _keep_progress(self) -> None:
        self.write_progress()

    def _decide(
        self, task_id: str, *, to: TaskState, allowed: set[TaskState], verb: str, reason: str
    ) -> Task:
        task = self.snapshot().task(task_id)
        if task.state not in allowed:
            raise _wrong_state(task, verb, allowed)
        with self._write() as tx:
            moved = tx.move_task(task_id, to, expect={task.state}, reason=reason)
        self.write_progress()
        return moved

    def _stopped_service(self, task_id: str) -> set[TaskState]:
        kind = self.snapshot().task(task_id).kind
        return {TaskState.DONE} if kind is TaskKind.SERVICE else set()

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


def _wrong_state(task: Task, verb: str, allowed: set[TaskState]) -> RunbookError:
    states = ", ".join(sorted(state.value for state in allowed))
    return RunbookError(
        f"Cannot {verb} `{task.id}`: it is {task.state}"
        + (f" ({task.reason})." if task.reason else "."),
        hint=f"That works when it is {states}.",
    )
