"""Errors of the operator's side, the exit codes, and the one place that explains any error.

An error names the thing, what was found, and the next step. Everything else is a bug: the fronts
write its traceback to a file and show the file's path.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from state import ClaimHeld, LeaseHeld, LeaseLost, RevisionMoved, StateError

if TYPE_CHECKING:
    from remote import RemoteError


class Exit(IntEnum):
    """Exit codes of every verb. Stable: scripts and agents branch on them."""

    OK = 0
    USAGE = 2
    TASK_FAILED = 3
    CHECK_FAILED = 4
    UNKNOWN = 5
    CONFLICT = 6
    NEEDS_APPROVAL = 7
    NEEDS_AUTH = 8
    OVER_BUDGET = 9
    STILL_RUNNING = 10


class RunbookError(Exception):
    """Base of this package's errors."""

    exit_code: Exit = Exit.USAGE

    def __init__(self, message: str, *, hint: str = "", exit_code: Exit | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code


class NoWorkspace(RunbookError):
    """There is no workspace here."""


class CannotStart(RunbookError):
    """A task cannot be started as things are; the graph is unchanged."""

    exit_code = Exit.TASK_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An error as every front shows it."""

    message: str
    hint: str
    exit_code: Exit


def explain(error: Exception) -> Explained | None:
    """The text, next step and exit code of a known error; None for a bug of ours."""
    if isinstance(error, RunbookError):
        return Explained(message=error.message, hint=error.hint, exit_code=error.exit_code)
    if isinstance(error, RevisionMoved | ClaimHeld | LeaseHeld | LeaseLost):
        return Explained(message=str(error), hint=error.hint, exit_code=Exit.CONFLICT)
    if isinstance(error, StateError):
        return Explained(message=str(error), hint=error.hint, exit_code=Exit.USAGE)
    return _of_a_host(error)


def _of_a_host(error: Exception) -> Explained | None:
    # Only here: looking at the graph starts without all that speaks to hosts.
    from remote import (
        AuthRefused,
        HostFenceHeld,
        HostKeyChanged,
        HostKeyUnknown,
        RemoteError,
        Unreachable,
    )

    if isinstance(error, HostFenceHeld):
        return Explained(message=str(error), hint=error.hint, exit_code=Exit.CONFLICT)
    if isinstance(error, HostKeyUnknown):
        hint = (
            "Compare the fingerprint with what the provider shows; if it is the same, repeat with "
            f"`--accept-fingerprint {error.fingerprint}`."
        )
        return Explained(message=str(error), hint=hint, exit_code=Exit.NEEDS_AUTH)
    if isinstance(error, HostKeyChanged):
        hint = "Find out whether it was rebuilt; then `runbook host repin ROLE` takes its new key."
        return Explained(message=str(error), hint=hint, exit_code=Exit.NEEDS_AUTH)
    if isinstance(error, Unreachable):
        refused = isinstance(error, AuthRefused)
        code = Exit.NEEDS_AUTH if refused else Exit.UNKNOWN
        return Explained(message=str(error), hint=_when(error), exit_code=code)
    if isinstance(error, RemoteError):
        return Explained(message=str(error), hint=error.hint, exit_code=Exit.USAGE)
    return None


def _when(error: RemoteError) -> str:
    """The hint, and when a host that is left alone is tried again."""
    wait = f"next try in {error.retry_in_s:.0f} s" if (error.retry_in_s or 0) >= 1 else ""
    return "; ".join(part for part in (error.hint, wait) if part)
