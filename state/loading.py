"""What a runbook file that is loaded does to the tasks that are there already."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state import journal
from state.errors import StateError
from state.graph import find_cycle
from state.model import JSON, LoadReport, Task, TaskDef, TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from state.transaction import Transaction

DEFINED = (
    *("position", "title", "phase", "step", "kind", "role", "needs"),
    *("definition", "definition_hash", "resources"),
)
JSON_COLUMNS = frozenset({"needs", "definition", "resources", "out"})


def load_tasks(tx: Transaction, defs: Sequence[TaskDef]) -> LoadReport:
    """Add, change, and retire tasks. A changed definition voids only what was done by the old."""
    _refuse_nonsense(defs)
    known = {task.id: task for task in tx.tasks()}
    new, changed = [], []
    for definition in defs:
        task = known.get(definition.id)
        if task is None:
            _add(tx, definition)
            new.append(definition.id)
        else:
            if task.removed or task.definition_hash != definition.definition_hash:
                changed.append(definition.id)
            _change(tx, task, definition)
    named = {definition.id for definition in defs}
    removed = [task.id for task in known.values() if task.id not in named and not task.removed]
    for task_id in removed:
        tx.execute("UPDATE task SET removed = 1 WHERE id = ?", [task_id])
        tx.event("task.removed", task_id, {}, task=task_id)
    return LoadReport(new=tuple(new), changed=tuple(changed), removed=tuple(removed))


def _refuse_nonsense(defs: Sequence[TaskDef]) -> None:
    names = [definition.id for definition in defs]
    double = sorted({name for name in names if names.count(name) > 1}) if _has_double(names) else []
    if double:
        raise StateError(f"The tasks {', '.join(double)} are defined twice.", "Rename one of each.")
    known = set(names)
    for definition in defs:
        for need in definition.needs:
            if need.task not in known:
                raise StateError(
                    f"Task {definition.id} needs {need.task}, which is not in the runbook.",
                    "Add it or correct the name under `needs`.",
                )
    cycle = find_cycle(defs)
    if cycle:
        raise StateError(f"The tasks need each other in a circle: {' -> '.join(cycle)}.", "Cut it.")


def _has_double(names: Sequence[str]) -> bool:
    return len(set(names)) != len(names)


def columns(definition: TaskDef | Task) -> dict[str, JSON]:
    """The defined part of a task as its columns hold it, JSON not yet made text."""
    return {
        "position": definition.position,
        "title": journal.clean(definition.title),
        "phase": journal.clean(definition.phase),
        "step": definition.step,
        "kind": definition.kind.value,
        "role": definition.role,
        "needs": [[need.task, need.condition] for need in definition.needs],
        "definition": json.loads(journal.canonical(dict(definition.definition))),
        "definition_hash": definition.definition_hash,
        "resources": list(definition.resources),
    }


def as_text(row: dict[str, JSON]) -> dict[str, JSON]:
    return {
        name: journal.canonical(value) if name in JSON_COLUMNS else value
        for name, value in row.items()
    }


def _add(tx: Transaction, definition: TaskDef) -> None:
    row = columns(definition)
    stored = {
        "id": definition.id,
        **as_text(row),
        "state": TaskState.DRAFT.value,
        "reason": "",
        "out": "{}",
        "since": tx.at,
        "removed": 0,
    }
    names = ", ".join(stored)
    marks = ", ".join(f":{name}" for name in stored)
    tx.execute(f"INSERT INTO task ({names}) VALUES ({marks})", stored)  # noqa: S608
    _put_needs(tx, definition)
    tx.event("task.added", definition.id, row, task=definition.id)


def _put_needs(tx: Transaction, definition: TaskDef) -> None:
    tx.execute("DELETE FROM dependency WHERE task = ?", [definition.id])
    for need in definition.needs:
        row = [definition.id, need.task, need.condition]
        tx.execute("INSERT OR IGNORE INTO dependency VALUES (?, ?, ?)", row)


def _change(tx: Transaction, task: Task, definition: TaskDef) -> None:
    before, after = columns(task), columns(definition)
    change = {name: value for name, value in after.items() if before[name] != value}
    if task.removed:
        change["removed"] = 0
    if change:
        assignments = ", ".join(f"{name} = :{name}" for name in change)
        values = {**as_text(change), "_id": task.id}
        tx.execute(f"UPDATE task SET {assignments} WHERE id = :_id", values)  # noqa: S608
        tx.event("task.changed", task.id, change, task=task.id)
    if "needs" in change:
        _put_needs(tx, definition)
    if "definition_hash" in change and task.state is TaskState.DONE:
        tx.put_state(task, TaskState.STALE, "its definition changed after it was done")
