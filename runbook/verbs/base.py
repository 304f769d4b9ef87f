"""What every acting verb stands on: one write, the hosts, and PROGRESS.md kept up to date."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Self

from runbook import costs
from runbook.advice import next_action
from runbook.brief import render_brief
from runbook.claims import require_free
from runbook.engine.hosts import Hosts
from runbook.engine.world import World
from runbook.errors import RunbookError
from runbook.reader import BRIEF_EVENTS, Reader
from runbook.secrets import SecretBox
from runbook.views import View
from state.mirror import Mirrored, is_current, write_progress
from state.progress_md import render
from state.telling import is_stopped, told_state

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from runbook.engine.events import Listener
    from runbook.workspace import Workspace
    from state import Event, Snapshot, Store, Task, TaskState, Tx


def ignore(_event: object) -> None:
    """A listener that does not care."""


class Writer(Reader):
    """A client that may write. Not shared between threads that act at the same time."""

    def __init__(self, workspace: Workspace, store: Store) -> None:
        super().__init__(workspace, store)
        self._hosts = Hosts(
            workspace_id=store.snapshot().meta.workspace_id, secrets=SecretBox(workspace.root)
        )
        self._progress_due = 0.0
        """When PROGRESS.md may be written again between two moves (our own clock)."""
        self.dry_run = False
        """Verbs only rehearse: nothing is recorded, written, or asked of a host."""
        self.rehearsed: list[Event] = []
        """The events that a rehearsal would have left."""
        self.would: list[str] = []
        """What it would have done besides, in words and commands."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        actor: str | None = None,
        expect_rev: int | None = None,
        dry_run: bool = False,
    ) -> Self:
        """As a reader does; `dry_run` makes every verb a rehearsal."""
        client = super().open(folder, actor=actor, expect_rev=expect_rev)
        client.dry_run = dry_run
        return client

    def close(self) -> None:
        """Closes connections. Jobs on hosts go on."""
        self._hosts.close()
        super().close()

    def progress_body(self, snapshot: Snapshot) -> str:
        """The managed part of PROGRESS.md at one revision."""
        events = self.events(after=max(0, snapshot.revision - BRIEF_EVENTS))
        # Nobody's clock and nobody's name is in it: every claim is taken as somebody else's.
        step = next_action(snapshot, engine=None, held=snapshot.claims)
        view = View(snapshot=snapshot, next=step)
        phases = json.loads(snapshot.meta.extra.get("phases", "{}"))
        return render(
            snapshot,
            brief=render_brief(view, events, titled=False),
            phases=phases,
            account=costs.account(snapshot, events[-1].at) if events else (),
        )

    def write_progress(self, *, force: bool = False) -> Mirrored:
        """Brings PROGRESS.md up to date; an edit found in its managed part is kept as a note."""
        if self.dry_run:
            return Mirrored(path=self.workspace.progress_file, changed=False)
        mirrored = self._mirror(force=force)
        if not mirrored.edit:
            return mirrored
        # The note moved the revision, so the file is already old.
        again = self._mirror(force=force)
        return replace(again, edit=mirrored.edit, edited_revision=mirrored.edited_revision)

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

    def _keep_progress(self) -> None:
        """After a move: at most a tenth of the time goes into PROGRESS.md, however large it is."""
        began = time.monotonic()
        if began >= self._progress_due:
            self.write_progress()
            now = time.monotonic()
            self._progress_due = now + 9 * (now - began)

    def _settle_progress(self) -> None:
        """Nothing moves: it is brought up to date, if a move was passed over."""
        if self._progress_due:
            self.write_progress()
            self._progress_due = 0.0

    def _require_free(self, *task_ids: str) -> None:
        """Raises ClaimHeld when somebody else claimed one of the tasks, or the whole run."""
        require_free(self.workspace, self.snapshot(), actor=self.store.actor, tasks=task_ids)

    def _compare_revision(self) -> None:
        """Only the comparison: the engine's own writes move the revision."""
        if self.expect_rev is not None:
            with self._write():
                pass

    def _write(self) -> AbstractContextManager[Tx]:
        expected, self.expect_rev = self.expect_rev, None
        if self.dry_run:
            return self.store.rehearse(self.rehearsed, expect_rev=expected)
        return self.store.write(expect_rev=expected)

    def _world(self, listen: Listener = ignore) -> World:
        return World(
            workspace=self.workspace,
            store=self.store,
            hosts=self._hosts,
            lease=None,
            listen=listen,
        )


def wrong_state(task: Task, verb: str, allowed: set[TaskState]) -> RunbookError:
    states = sorted("in attention" if state == "attention" else state.value for state in allowed)
    *others, last = states
    either = f"{', '.join(others)} or " if others else ""
    hint = f"That works when it is {either}{last}."
    if is_stopped(task):
        hint = f"`runbook retry {quote(task.id)}` runs it again."
    return RunbookError(
        f"Cannot {verb} `{task.id}`: it is {told_state(task)}"
        + (f" ({task.reason})." if task.reason else "."),
        hint=hint,
    )
