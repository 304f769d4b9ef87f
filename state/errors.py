"""Everything the state package can refuse, each with what was found and the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from state.model import Claim, Event


class StateError(Exception):
    """Something in the task graph or its database is not as it must be."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UnknownTask(StateError):
    """No task has this name."""

    def __init__(self, task: str, known: Iterable[str] = ()) -> None:
        from difflib import get_close_matches  # 10 ms of import that only a typing error is worth

        names = sorted(known)
        members = [name for name in names if name.startswith((f"{task}[", f"{task}@"))]
        near = members[:3] or get_close_matches(task, names, n=3, cutoff=0.5)
        hint = f"Did you mean {', '.join(near)}?" if near else "`runbook status` lists all tasks."
        if members:
            more = f" and {len(members) - 3} more" if len(members) > 3 else ""
            text, hint = f"{task!r} is a family of tasks.", f"Name one: {', '.join(near)}{more}."
        else:
            text = f"There is no task {task!r}."
        super().__init__(text, hint)
        self.task = task
        self.near = tuple(near)


class UnknownAttempt(StateError):
    """No attempt has this id."""

    def __init__(self, attempt: str) -> None:
        super().__init__(f"There is no attempt {attempt!r}.", "`runbook status TASK` lists them.")
        self.attempt = attempt


class UnknownHost(StateError):
    """No machine is bound to this role."""

    def __init__(self, role: str) -> None:
        super().__init__(
            f"No machine is bound to the host role {role!r}.",
            f"Bind one: runbook host bind {role} user@address",
        )
        self.role = role


class IllegalTransition(StateError):
    """The table of transitions has no such edge."""

    def __init__(self, what: str, name: str, found: str, to: str, legal: Iterable[str]) -> None:
        ways = ", ".join(sorted(legal)) or "nothing: it is final"
        super().__init__(
            f"{what} {name} is {found} and cannot become {to}.",
            f"From {found} it can become: {ways}.",
        )
        self.name = name
        self.found = found
        self.to = to


class StateMoved(IllegalTransition):
    """Compare-and-set failed: somebody else moved it first."""

    def __init__(self, what: str, name: str, found: str, to: str, expected: Iterable[str]) -> None:
        StateError.__init__(
            self,
            f"{what} {name} is {found}, not {' or '.join(sorted(expected))}; "
            f"it was not moved to {to}.",
            "Somebody else was first: read the state again and decide anew.",
        )
        self.name = name
        self.found = found
        self.to = to


class NotRunnable(StateError):
    """A task was to start although a need of it is not met."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(f"Task {task} cannot start: {reason}.", "Run what it needs first.")
        self.task = task


class PreviousAttemptLive(StateError):
    """A new attempt was asked for while the previous one may still run."""

    def __init__(self, task: str, attempt: str, found: str, *, lost: bool) -> None:
        hint = (
            f"If you know that it is dead: runbook supersede {task}"
            if lost
            else f"Wait for it, or stop it: runbook stop {task}"
        )
        super().__init__(
            f"Task {task} already has attempt {attempt}, which is {found}; "
            "a second copy is not started.",
            hint,
        )
        self.task = task
        self.attempt = attempt
        self.found = found


class RevisionMoved(StateError):
    """The graph changed since the caller looked at it."""

    def __init__(self, expected: int, found: int, since: Sequence[Event]) -> None:
        what = "; ".join(f"{event.seq} {event.kind} {event.subject}" for event in since[-5:])
        super().__init__(
            f"The state is at revision {found}, not {expected}; nothing was written.",
            f"Since then: {what}" if what else "Read the state again.",
        )
        self.expected = expected
        self.found = found
        self.since = tuple(since)


class LeaseHeld(StateError):
    """Another live process owns this resource."""

    def __init__(self, resource: str, holder: str, since: str) -> None:
        super().__init__(
            f"{resource} is held by {holder} since {since}.",
            "Observing needs no lease; to act, end that process or wait for it.",
        )
        self.resource = resource
        self.holder = holder
        self.since = since


class ClaimHeld(StateError):
    """Somebody claimed this task, or the whole run."""

    def __init__(self, claim: Claim) -> None:
        what = "The whole run" if claim.subject == "run" else f"Task {claim.subject}"
        why = f" ({claim.reason})" if claim.reason else ""
        super().__init__(
            f"{what} is claimed by {claim.holder} since {claim.at}{why}.",
            f"Ask them to `runbook release {claim.subject}`; a person who knows that they are gone "
            f'takes over: runbook claim {claim.subject} --take-over --reason "..."',
        )
        self.claim = claim


class LeaseLost(StateError):
    """The writer was replaced: its fence token is no longer the newest."""

    def __init__(self, resource: str, token: int, found: int | None) -> None:
        now = "was released" if found is None else f"now has token {found}"
        super().__init__(
            f"The lease on {resource} with token {token} is lost: it {now}; nothing was written.",
            "Stop, read the state again, and acquire the lease anew before acting.",
        )
        self.resource = resource
        self.token = token
        self.found = found


class DatabaseUnusable(StateError):
    """The database file cannot be used as it is; it was not changed."""


class DatabaseBusy(DatabaseUnusable):
    """Another process kept the write lock longer than we wait."""


class NetworkFileSystem(DatabaseUnusable):
    """SQLite's write-ahead log loses data on network file systems."""

    def __init__(self, path: str, mount: str, kind: str) -> None:
        super().__init__(
            f"{path} lies on {mount}, a network file system ({kind}); "
            "a database there can be corrupted even by a single writer.",
            "Keep the workspace on a local disk; share it with `runbook push` and `runbook pull`.",
        )
        self.mount = mount
        self.kind = kind


class SchemaTooNew(DatabaseUnusable):
    """A newer version of this program wrote the database."""

    def __init__(self, path: str, unknown: Sequence[str]) -> None:
        super().__init__(
            f"{path} was written by a newer version: it has the schema changes "
            f"{', '.join(unknown)}, which this version does not know.",
            "Update this installation; the file was not changed.",
        )
        self.unknown = tuple(unknown)
