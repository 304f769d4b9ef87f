"""The word for where a task stands, as people are told it. The graph and JSON have its state."""

from __future__ import annotations

from typing import Protocol

from state.model import TaskState


class Standing(Protocol):
    """Where a task stands, and why."""

    @property
    def state(self) -> TaskState: ...
    @property
    def reason(self) -> str: ...


STOPPED_BY = "stopped by "
"""How the reason of a person's stop begins."""
STOPPED = "stopped"
"""The word for what somebody stopped: that is no question, but the graph calls both `gated`."""


def told_move(to: str, reason: str) -> str:
    """The word for a state that a task moves to for this reason."""
    by_person = to == TaskState.GATED and reason.startswith(STOPPED_BY)
    return STOPPED if by_person else str(to)


def told_state(task: Standing) -> str:
    """The word for where a task stands."""
    return told_move(task.state, task.reason)


def is_stopped(task: Standing) -> bool:
    """Whether a task waits because a person stopped it, and runs again when one says so."""
    return told_state(task) == STOPPED


def waits_for_yes(task: Standing) -> bool:
    """Whether a person's yes lets it go on: what one stopped is no question, it is retried."""
    return task.state == TaskState.GATED and not is_stopped(task)
