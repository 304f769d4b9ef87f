"""Reading a workspace: needs the graph alone, contacts no host, and loads nothing else.

This is what keeps `runbook status` quick; everything that acts is in `runbook.service`.
"""

from __future__ import annotations

import json
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Self

from runbook.advice import for_agent, next_action
from runbook.brief import BUDGET, Brief, make_brief, to_markdown
from runbook.claims import live_claims
from runbook.documents import document_states
from runbook.errors import RunbookError
from runbook.live import read_live
from runbook.placement import place
from runbook.views import View
from runbook.workspace import Workspace, default_actor, find_workspace
from state import Attempt, AttemptState, Event, Snapshot, Store, TaskState, open_store
from state.reading import Known
from state.transitions import PENDING, RUNNING, TERMINAL

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

ENGINE = "engine"
"""The resource that whoever advances the graph holds."""
FILE_DIGEST = "file_sha256"
"""Where the digest of the runbook file that was taken over is kept."""
BRIEF_EVENTS = 200
"""How far back the brief looks for what happened lately."""
AGENT = "agent:"
"""How the name of an actor begins who is no person."""
UNDER_WAY = (PENDING | RUNNING) - {TaskState.SERVING}
WAIT_STEP_S = 0.25


class Reader:
    """One client of one workspace, looking only."""

    def __init__(self, workspace: Workspace, store: Store) -> None:
        self.workspace = workspace
        self.store = store
        self._known = Known()
        self._version = store.data_version()
        self.expect_rev: int | None = None
        """The revision that the first write must find."""
        self.is_agent = store.actor.startswith(AGENT)
        """What only a person may decide is then refused, until a person said yes."""

    @classmethod
    def open(cls, folder: Path, *, actor: str | None = None, expect_rev: int | None = None) -> Self:
        """Opens the workspace at `folder` or above it. Raises NoWorkspace or StateError."""
        workspace = find_workspace(folder)
        if workspace.database.stat().st_size == 0:
            raise RunbookError(
                f"{workspace.database} is empty: it was lost, perhaps with a full disk.",
                hint="`runbook doctor` names the backups; nothing was made anew.",
            )
        client = cls(workspace, open_store(workspace.database, actor=actor or default_actor()))
        client.expect_rev = expect_rev
        return client

    @property
    def actor(self) -> str:
        """Who acts, as recorded with every event."""
        return self.store.actor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database."""
        self.store.close()

    def snapshot(self) -> Snapshot:
        """The newest committed state."""
        return self.store.snapshot(self._known)

    def view(self) -> View:
        """Everything a front shows."""
        snapshot = self.snapshot()
        engine, live = self.engine_holder(snapshot), live_claims(self.workspace, snapshot)
        held = [c for c in snapshot.claims if c.subject in live and c.holder != self.actor]
        step = next_action(snapshot, engine=engine, held=held)
        return View(
            snapshot=snapshot,
            next=for_agent(step, snapshot) if self.is_agent else step,
            live=read_live(self.workspace),
            edited=self.is_edited(snapshot),
            engine=engine,
            waiting=place(snapshot).waiting,
            claims=live,
            documents=document_states(self.workspace.root, snapshot.documents),
        )

    def is_edited(self, snapshot: Snapshot) -> bool:
        """Whether runbook.yaml was edited since the graph took it over."""
        try:
            text = self.workspace.runbook_file.read_bytes()
        except OSError:
            return False
        known = snapshot.meta.extra.get(FILE_DIGEST)
        return known is not None and sha256(text).hexdigest() != known

    def engine_holder(self, snapshot: Snapshot) -> str | None:
        """Who advances the graph now, by proof of a held lock; None when nobody does."""
        if not self.store.is_live(ENGINE):
            return None
        held = (lease.holder for lease in snapshot.leases if lease.resource == ENGINE)
        return next(held, "somebody who is just starting")

    def wait(self, task_id: str | None, *, timeout_s: float | None) -> tuple[View, bool]:
        """Waits until a task has ended (a service: serves), or nobody advances the graph.

        Returns:
            The newest view, and whether that came about within `timeout_s`.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def ended() -> bool:
            return task_id is not None and view.snapshot.task(task_id).state not in UNDER_WAY

        while True:
            view = self.view()
            if ended():
                return view, True
            if view.engine is None:
                view = self.view()  # it may have ended the task, and left, since that was read
                return view, task_id is None or ended()
            if deadline is not None and time.monotonic() >= deadline:
                return view, False
            time.sleep(WAIT_STEP_S)

    def require_role(self, role: str) -> None:
        """Raises RunbookError when the runbook has no such host role."""
        roles = json.loads(self.snapshot().meta.extra.get("roles", "{}"))
        if role not in roles:
            raise RunbookError(
                f"The runbook has no host role `{role}`.",
                hint=f"Its roles: {', '.join(sorted(roles)) or 'none'}.",
            )

    def changed(self) -> bool:
        """Whether another client committed something since the last call."""
        version = self.store.data_version()
        moved, self._version = version != self._version, version
        return moved

    def events(self, *, after: int = 0, limit: int = 1000, task: str | None = None) -> list[Event]:
        """Facts in the order in which they were recorded."""
        return self.store.events(after=after, limit=limit, task=task)

    def brief(self, about: str | None = None, *, budget: int = BUDGET) -> str:
        """The hand-off text, as Markdown; with one task in front when asked about it."""
        return to_markdown(self.brief_parts(about, budget=budget))

    def brief_parts(self, about: str | None = None, *, budget: int = BUDGET) -> Brief:
        """The hand-off text in parts. Raises UnknownTask."""
        view = self.view()
        events = self.events(after=max(0, view.snapshot.revision - BRIEF_EVENTS), task=about)
        return make_brief(view, events, about=about, budget=budget)

    def log_path(
        self, task_id: str, stream: str = "out", *, number: int | None = None
    ) -> Path | None:
        """The local copy of a stream of one attempt; None when there is none yet."""
        attempt = numbered(self.snapshot(), task_id, number)
        if attempt is None:
            return None
        path = self.workspace.log(attempt.id, stream)
        return path if path.exists() else None

    def copy_is_behind(
        self, snapshot: Snapshot, task_id: str, *, number: int | None = None
    ) -> bool:
        """Whether the host may have output of an attempt that nobody copies for us."""
        attempt = numbered(snapshot, task_id, number)
        if attempt is None or attempt.state is AttemptState.NEVER_STARTED:
            return False
        if attempt.detail.get("job") is None:
            return False
        if attempt.state in TERMINAL:  # seen to its end by somebody else, whose state was pulled
            copies = [self.log_path(task_id, name, number=number) for name in ("out", "err")]
            return copies == [None, None]
        return self.engine_holder(snapshot) is None


def numbered(snapshot: Snapshot, task_id: str, number: int | None) -> Attempt | None:
    """An attempt by its number, or the newest, if there is any. Raises RunbookError for another."""
    if number is None:
        return snapshot.latest_attempt(task_id)
    attempts = snapshot.attempts_of(task_id)
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    count = len(attempts)
    raise RunbookError(
        f"`{task_id}` has no attempt {number}: it had {count or 'none'} so far.",
        hint=f"`runbook status {task_id}` lists them.",
    )
