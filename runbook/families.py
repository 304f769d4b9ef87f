"""A family of tasks as one line: how many are where. Pure; for fronts that list tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from state.graph import family_of
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state import Task

WORST_FIRST = (
    *(
        "attention",
        "failed",
        "unhealthy",
        "gated",
        "stopped",
        "stale",
        "active",
        "verifying",
        "starting",
    ),
    *("draining", "serving", "ready", "draft", "blocked", "skipped", "done"),
)
WORTH_A_LINE = frozenset(WORST_FIRST[: WORST_FIRST.index("ready")])
"""States of members that are told one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Tasks that one `for_each` made, in the order of the file."""

    name: str
    tasks: tuple[Task, ...]

    @property
    def state(self) -> str:
        """The state that most needs to be seen."""
        found = {told_state(task) for task in self.tasks}
        return next(state for state in WORST_FIRST if state in found)

    @property
    def counts(self) -> dict[str, int]:
        """How many are in which state, what needs to be seen first."""
        found = Counter(told_state(task) for task in self.tasks)
        return {state: found[state] for state in WORST_FIRST if found[state]}

    @property
    def said(self) -> str:
        """`3 active, 4 ready, 9 of 16 done`."""
        counts = self.counts
        done = counts.pop("done", 0)
        parts = [f"{count} {state}" for state, count in counts.items()]
        return ", ".join([*parts, f"{done} of {len(self.tasks)} done"])


def folded(tasks: Iterable[Task]) -> Iterator[Task | Family]:
    """Each task, or its whole family where the first of it stands."""
    grouped: dict[str, list[Task]] = {}
    for task in tasks:
        if not task.removed:
            grouped.setdefault(family_of(task.id), []).append(task)
    for name, members in grouped.items():  # in the order of their first tasks
        yield members[0] if len(members) == 1 else Family(name=name, tasks=tuple(members))
