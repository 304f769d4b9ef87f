"""A person's yes to what an agent asked for: one request, one token, one use.

An agent that acts through the MCP server asks for a destructive verb, a person confirms it at a
terminal and gets a token, and the agent's next call with that token is carried out. The token is
bound to the verb, the task and the attempt it was asked for: when any of them moved, it is void.
For an agent with a shell this is a guard-rail, not a boundary (see SECURITY.md).
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING

from runbook.errors import Exit, RunbookError
from runbook.requests import (
    APPROVED_DIGEST,
    REQUEST,
    Request,
    attempt_of,
    find_request,
    open_requests,
    runbook_is_approved,
    text_of,
)
from runbook.verbs.base import Writer, wrong_state
from state import RevisionMoved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runbook.workspace import Workspace
    from state import Snapshot, Store, Task, TaskState


class NeedsConfirmation(RunbookError):
    """Only a person may decide this."""

    exit_code = Exit.NEEDS_APPROVAL

    def __init__(self, message: str, *, hint: str = "", request: str = "") -> None:
        super().__init__(message, hint=hint)
        self.request = request
        """What a person confirms; empty when no token helps."""


class ConfirmVerbs(Writer):
    """Asking, confirming, redeeming; and what an agent may not do by itself."""

    def __init__(self, workspace: Workspace, store: Store) -> None:
        super().__init__(workspace, store)
        self._said_yes: set[tuple[str, str]] = set()

    def _person_decides(self, verb: str, task_id: str, reason: str = "") -> None:
        """Raises NeedsConfirmation for an agent without a person's yes to exactly this."""
        if not self.is_agent or self.dry_run or (verb, task_id) in self._said_yes:
            return
        request = self.ask(verb, task_id, reason)
        raise NeedsConfirmation(
            f"A person must say yes first to `{verb} {task_id}`.",
            hint=f"Ask them to run `runbook confirm {request.id}`, then repeat it with the token.",
            request=request.id,
        )

    def _only_a_person(self, what: str) -> None:
        """Raises NeedsConfirmation for an agent: no token lets it do this."""
        if self.is_agent and not self.dry_run:
            raise NeedsConfirmation(
                f"An agent does not {what}.", hint="Ask a person to, and say why."
            )

    def require_approved(self) -> None:
        """Raises NeedsConfirmation for an agent when no person said yes to the runbook."""
        if self.is_agent and not runbook_is_approved(self.snapshot()):
            raise NeedsConfirmation(
                "No person has approved this runbook as it is loaded.",
                hint="A person looks at it and runs `runbook confirm --runbook`.",
            )

    def _decide(
        self,
        task_id: str,
        *,
        to: TaskState,
        allowed: set[TaskState],
        verb: str,
        reason: str,
        why: str = "",
        person: bool = False,
        also: Sequence[Task] = (),
    ) -> Task:
        """One move by a person; `also` moves with it, each from the state it is in.

        Args:
            reason: what is recorded with it; it says who decided.
            why: what was given as the reason, for a person who is asked first.
        """
        task = self.snapshot().task(task_id)
        if task.state not in allowed:
            raise wrong_state(task, verb, allowed)
        if person:
            self._person_decides(verb, task_id, why)
        self._require_free(task_id, *(one.id for one in also))
        with self._write() as tx:
            moved = tx.move_task(task_id, to, expect={task.state}, reason=reason)
            for one in also:
                tx.move_task(one.id, to, expect={one.state}, reason=f"{task_id}: {reason}")
        self.write_progress()
        return moved

    def ask(self, verb: str, task_id: str, reason: str) -> Request:
        """Records that somebody wants this. The same open request is found again, not doubled.

        Raises:
            UnknownTask: there is no such task.
        """
        snapshot = self.snapshot()
        attempt = attempt_of(snapshot, task_id)
        for request in open_requests(snapshot):
            if (request.verb, request.task, request.attempt) == (verb, task_id, attempt):
                return request
        with self._write() as tx:
            request = Request(
                id=f"c{tx.revision + 1}",
                verb=verb,
                task=task_id,
                attempt=attempt,
                reason=reason,
                asked_by=self.store.actor,
            )
            tx.set_meta(REQUEST + request.id, text_of(request))
        self.write_progress()
        return request

    def confirm(self, request_id: str) -> str:
        """A person's yes. Returns the token; it is shown once and kept only as a digest.

        Only call this after a person answered at a terminal.

        Raises:
            RunbookError: no such request is open.
        """
        request = find_request(self.snapshot(), request_id)
        token = secrets.token_urlsafe(12)
        digest = sha256(token.encode()).hexdigest()
        with self._write() as tx:
            tx.set_meta(REQUEST + request.id, text_of(replace(request, token_sha256=digest)))
        self.write_progress()
        return token

    def decline(self, request_id: str) -> None:
        """A person's no: nobody is asked any more. Raises RunbookError: no such request is open."""
        request = find_request(self.snapshot(), request_id)
        with self._write() as tx:
            tx.set_meta(REQUEST + request.id, text_of(replace(request, used=True)))
        self.write_progress()

    def redeem(self, token: str, verb: str, task_id: str) -> Request:
        """Uses a token up, for exactly what it was given for.

        Raises:
            NeedsConfirmation: the token is unknown, used, or for something else.
        """
        self._compare_revision()  # what follows moves it
        while True:
            snapshot = self.snapshot()
            request = _matching(snapshot, token, verb, task_id)
            try:
                # Of two calls with one token only the first finds the graph as it was.
                with self.store.write(expect_rev=snapshot.revision) as tx:
                    tx.set_meta(REQUEST + request.id, text_of(replace(request, used=True)))
            except RevisionMoved:
                continue
            self._said_yes.add((verb, task_id))
            return request

    def approve_runbook(self) -> str:
        """A person's yes to the runbook as it is loaded now; its digest."""
        digest = self.snapshot().meta.runbook_hash
        with self._write() as tx:
            tx.set_meta(APPROVED_DIGEST, digest)
        self.write_progress()
        return digest


def _matching(snapshot: Snapshot, token: str, verb: str, task_id: str) -> Request:
    digest = sha256(token.encode()).hexdigest()
    for request in open_requests(snapshot):
        if request.token_sha256 and compare_digest(request.token_sha256, digest):
            if (request.verb, request.task) != (verb, task_id):
                raise NeedsConfirmation(
                    f"This token is for `{request.verb} {request.task}`, not for this.",
                    hint="Ask without a token; a person confirms the new request.",
                )
            return request
    raise NeedsConfirmation(
        "This token is not known, was used already, or its task has moved on since.",
        hint="Ask without a token; a person confirms the request.",
    )
