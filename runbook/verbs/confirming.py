"""A person's yes to what an agent asked for: one request, one token, one use.

An agent that acts through the MCP server asks for a destructive verb, a person confirms it at a
terminal and gets a token, and the agent's next call with that token is carried out. The token is
bound to the verb, the task and the attempt it was asked for: when any of them moved, it is void.
For an agent with a shell this is a guard-rail, not a boundary (see SECURITY.md).
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from hmac import compare_digest
from typing import TYPE_CHECKING

from runbook.errors import Exit, RunbookError
from runbook.verbs.base import Writer
from state import RevisionMoved

if TYPE_CHECKING:
    from state import Snapshot

REQUEST = "confirm:"
"""Prefix of the keys under which requests are kept."""
APPROVED_DIGEST = "approved_runbook"
"""The digest of the runbook that a person last said yes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What somebody wants to do and may not do alone."""

    id: str
    verb: str
    task: str
    attempt: str
    """The attempt it was asked for; empty when the task never ran."""
    reason: str
    asked_by: str
    token_sha256: str = ""
    """Of the token that a person was given; empty until then."""
    used: bool = False


class NeedsConfirmation(RunbookError):
    """Only a person may decide this."""

    exit_code = Exit.NEEDS_APPROVAL


class ConfirmVerbs(Writer):
    """Asking, confirming, redeeming."""

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
            tx.set_meta(REQUEST + request.id, _text(request))
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
            tx.set_meta(REQUEST + request.id, _text(replace(request, token_sha256=digest)))
        self.write_progress()
        return token

    def redeem(self, token: str, verb: str, task_id: str) -> Request:
        """Uses a token up, for exactly what it was given for.

        Raises:
            NeedsConfirmation: the token is unknown, used, or for something else.
        """
        while True:
            snapshot = self.snapshot()
            request = _matching(snapshot, token, verb, task_id)
            try:
                # Of two calls with one token only the first finds the graph as it was.
                with self.store.write(expect_rev=snapshot.revision) as tx:
                    tx.set_meta(REQUEST + request.id, _text(replace(request, used=True)))
            except RevisionMoved:
                continue
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


def _text(request: Request) -> str:
    return json.dumps(asdict(request), sort_keys=True)


def attempt_of(snapshot: Snapshot, task_id: str) -> str:
    """The id of the newest attempt, or nothing. Raises UnknownTask."""
    attempt = snapshot.latest_attempt(task_id)
    return attempt.id if attempt else ""


def open_requests(snapshot: Snapshot) -> list[Request]:
    """Those not used yet and still about the attempt they were made for, oldest first."""
    rows = [
        Request(**json.loads(value))
        for key, value in snapshot.meta.extra.items()
        if key.startswith(REQUEST)
    ]
    still = [
        row
        for row in rows
        if not row.used
        and row.task in snapshot.by_id
        and attempt_of(snapshot, row.task) == row.attempt
    ]
    return sorted(still, key=lambda row: int(row.id[1:]))


def find_request(snapshot: Snapshot, request_id: str) -> Request:
    """One open request. Raises RunbookError."""
    found = open_requests(snapshot)
    for request in found:
        if request.id == request_id:
            return request
    names = ", ".join(request.id for request in found)
    raise RunbookError(
        f"No request `{request_id}` waits for a yes.",
        hint=f"Open requests: {names}." if names else "None is open; it may be outdated or used.",
    )


def runbook_is_approved(snapshot: Snapshot) -> bool:
    """Whether a person said yes to the runbook that is loaded."""
    return snapshot.meta.extra.get(APPROVED_DIGEST) == snapshot.meta.runbook_hash
