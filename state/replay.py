"""The task and attempt tables rebuilt from nothing but events.

A proof, not a feature: a change that left no event would make the two differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from state.model import JSON, Attempt, AttemptState, FailureClass, Need, Task, TaskKind, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state.model import Event

Row = dict[str, JSON]


@dataclass(slots=True)
class Tables:
    """Rows by id, attempts in the order of their creation."""

    tasks: dict[str, Row] = field(default_factory=dict)
    attempts: dict[str, Row] = field(default_factory=dict)


def replay(events: Iterable[Event]) -> tuple[tuple[Task, ...], tuple[Attempt, ...]]:
    """What a snapshot must show after these events, which begin with the first."""
    tables = Tables()
    for event in events:
        apply = HANDLERS.get(event.kind)
        if apply is not None:
            apply(tables, event)
    tasks = sorted(tables.tasks.values(), key=lambda row: (row["position"], row["id"]))
    return tuple(map(_task, tasks)), tuple(map(_attempt, tables.attempts.values()))


def _added(tables: Tables, event: Event) -> None:
    tables.tasks[event.subject] = {
        "id": event.subject,
        **event.payload,
        "state": "draft",
        "reason": "",
        "out": {},
        "since": event.at,
        "removed": False,
        "began_hash": None,
    }


def _changed(tables: Tables, event: Event) -> None:
    tables.tasks[event.subject].update(event.payload)


def _removed(tables: Tables, event: Event) -> None:
    tables.tasks[event.subject]["removed"] = True


def _moved(tables: Tables, event: Event) -> None:
    row = tables.tasks[event.subject]
    if row["state"] != event.payload["from"]:
        raise ValueError(
            f"event {event.seq} moves {event.subject} from {event.payload['from']}, "
            f"but it is {row['state']}"
        )
    row.update(state=event.payload["to"], reason=event.payload["reason"], since=event.at)
    if "began_hash" in event.payload:
        row["began_hash"] = event.payload["began_hash"]


def _created(tables: Tables, event: Event) -> None:
    tables.attempts[event.subject] = {
        "id": event.subject,
        "task": event.task,
        "state": "intended",
        "created_at": event.at,
        "evidence": {},
        **dict.fromkeys(("cls", "exit_code", "signal", "started_at", "ended_at", "superseded_by")),
        **event.payload,
    }


def _attempt_moved(tables: Tables, event: Event) -> None:
    row = tables.attempts[event.subject]
    if row["state"] != event.payload["from"]:
        raise ValueError(
            f"event {event.seq} moves attempt {event.subject} from {event.payload['from']}, "
            f"but it is {row['state']}"
        )
    row.update({key: value for key, value in event.payload.items() if key != "from"})


def _superseded(tables: Tables, event: Event) -> None:
    tables.attempts[event.subject]["superseded_by"] = event.payload["by"]


HANDLERS: dict[str, Callable[[Tables, Event], None]] = {
    "task.added": _added,
    "task.changed": _changed,
    "task.removed": _removed,
    "task.moved": _moved,
    "task.reason": _changed,
    "task.out": _changed,
    "attempt.created": _created,
    "attempt.moved": _attempt_moved,
    "attempt.superseded": _superseded,
}


def _task(row: Row) -> Task:
    typed = {
        "kind": TaskKind(row["kind"]),
        "state": TaskState(row["state"]),
        "needs": tuple(Need(task=need[0], condition=need[1]) for need in row["needs"]),
        "resources": tuple(row["resources"]),
        "removed": bool(row["removed"]),
    }
    return Task(**{**row, **typed})


def _attempt(row: Row) -> Attempt:
    typed = {
        "state": AttemptState(row["state"]),
        "cls": FailureClass(row["cls"]) if row["cls"] else None,
    }
    return Attempt(**{**row, **typed})
