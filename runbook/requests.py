"""Requests that wait for a person's yes, as the graph records them. Reads a snapshot only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from runbook.errors import RunbookError
from state import TaskState
from state.telling import waits_for_yes
from state.transitions import PENDING, RUNNING

if TYPE_CHECKING:
    from state import Snapshot

REQUEST = "confirm:"
"""Prefix of the keys under which requests are kept."""
APPROVED_DIGEST = "approved_runbook"
"""The digest of the runbook that a person last said yes to."""
RETRY_BELOW = "retry --below"
"""Asks for more than `retry`, so another yes."""
UNFINISHED = PENDING | {
    *(TaskState.GATED, TaskState.FAILED, TaskState.STALE, TaskState.ATTENTION),
}
AGAIN = frozenset({TaskState.FAILED, TaskState.STALE, TaskState.SKIPPED, TaskState.GATED})
APPLIES = {
    "restart": RUNNING,
    "retry": AGAIN | {TaskState.DONE},
    "skip": UNFINISHED,
    "stop": RUNNING,
    # Not started here, where another copy ran it.
    "supersede": frozenset({TaskState.ATTENTION, TaskState.READY, TaskState.BLOCKED}),
    "verify": frozenset({TaskState.FAILED}),
}
"""Verb -> states of a task in which it can be carried out at all; `approve` asks for more."""


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
        and _makes_sense(snapshot, row)
    ]
    return sorted(still, key=lambda row: int(row.id[1:]))


def _makes_sense(snapshot: Snapshot, request: Request) -> bool:
    """Whether the task still is where the verb can be carried out."""
    task, verb = snapshot.task(request.task), request.verb.partition(" ")[0]
    return waits_for_yes(task) if verb == "approve" else task.state in APPLIES[verb]


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


def text_of(request: Request) -> str:
    return json.dumps(asdict(request), sort_keys=True)
