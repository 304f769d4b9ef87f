"""What loading an edited runbook file would change. Pure: from a snapshot and a loaded file.

It says beforehand what `state.loading` does; a test holds the two together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state import Snapshot, Task, TaskDef, TaskState
from state.graph import topological
from state.loading import columns
from state.telling import told_state
from state.transitions import PENDING, RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runbook.plan import Runbook

UNTOLD = frozenset({"definition", "definition_hash", "position"})
"""Columns that other fields tell better: the parts of the definition, and the order as a whole."""
AFTER_END = RUNNING - {TaskState.SERVING, TaskState.UNHEALTHY, TaskState.DRAINING}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field of a task, or of the head of the file."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A task that is defined differently than before."""

    task: str
    state: TaskState
    fields: tuple[FieldChange, ...]
    effect: str
    """What loading does to it, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affected:
    """A task that needs, directly or not, one that turns stale."""

    task: str
    state: TaskState
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A task that the file no longer has; its history stays."""

    task: str
    state: TaskState
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Everything that loading would change."""

    new: tuple[str, ...] = ()
    changed: tuple[Changed, ...] = ()
    removed: tuple[Removed, ...] = ()
    cosmetic: tuple[Changed, ...] = ()
    """Titles, phases, retries, time limits, gates: no result depends on them."""
    reordered: bool = False
    head: tuple[FieldChange, ...] = ()
    """Title, goal, parameters, phases, host roles."""
    stale: tuple[str, ...] = ()
    """Done tasks that would turn stale at once."""
    affected: tuple[Affected, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether loading the file would change nothing."""
        return self == Difference()


def compare(snapshot: Snapshot, runbook: Runbook) -> Difference:
    """What `load` would do with this file on this graph."""
    known = {task.id: task for task in snapshot.tasks}
    defs = runbook.task_defs()
    pairs = [(known[new.id], new) for new in defs if new.id in known]
    named = {new.id for new in defs}
    gone = [task for task in snapshot.tasks if task.id not in named and not task.removed]
    hashes = {task.id for task, new in pairs if task.definition_hash != new.definition_hash}
    changed, cosmetic = [], []
    for task, new in pairs:
        fields = tuple(_fields(task, new))
        record = Changed(task=task.id, state=task.state, fields=fields, effect=_effect(task, new))
        if task.id in hashes or task.removed:
            changed.append(record)
        elif fields:
            cosmetic.append(record)
    stale = tuple(t.id for t, _ in pairs if t.id in hashes and t.state is TaskState.DONE)
    ending = {t.id for t, new in pairs if t.state in AFTER_END and _ends_stale(t, new)}
    return Difference(
        new=tuple(new.id for new in defs if new.id not in known),
        changed=tuple(changed),
        removed=tuple(Removed(task=t.id, state=t.state, effect=_retired(t)) for t in gone),
        cosmetic=tuple(cosmetic),
        reordered=_reordered(pairs),
        head=tuple(_head(snapshot, runbook)),
        stale=stale,
        affected=tuple(_affected(known, defs, {*stale, *ending})),
    )


def _fields(task: Task, new: TaskDef) -> Iterator[FieldChange]:
    before, after = columns(task), columns(new)
    said = set()
    if task.removed:
        yield FieldChange(field="removed", before=True, after=False)
    for change in _parts(before["definition"], after["definition"]):
        said.add(change.field)
        yield change
    for name in after:
        if name not in UNTOLD and name not in said and before[name] != after[name]:
            yield FieldChange(field=name, before=before[name], after=after[name])


def _parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    """The keys of a definition that differ; the step's arguments one by one."""
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if key == "with" and isinstance(old, dict) and isinstance(new, dict):
            for name in dict.fromkeys((*old, *new)):
                if name not in old or name not in new or old[name] != new[name]:
                    change = (old.get(name), new.get(name))
                    yield FieldChange(field=f"with.{name}", before=change[0], after=change[1])
        else:
            yield FieldChange(field=key, before=old, after=new)


def _effect(task: Task, new: TaskDef) -> str:
    back = "comes back" if task.removed else ""
    if task.definition_hash == new.definition_hash:
        return back
    if task.state is TaskState.DONE:
        return "turns stale; it is not run again by itself"
    if task.state in AFTER_END:
        if _ends_stale(task, new):
            return "runs on as it began, and ends stale"
        return "runs on: this is the definition that it began with"
    if task.state in RUNNING:
        return "goes on as it began until it is stopped"
    if task.state in PENDING:
        return "will run by the new definition"
    return f"stays {told_state(task)}; its next attempt goes by the new definition"


def _ends_stale(task: Task, new: TaskDef) -> bool:
    return task.began_hash != new.definition_hash


def _retired(task: Task) -> str:
    if task.state in RUNNING:
        return f"what runs of it runs on: `runbook stop {task.id}` first"
    return "kept as history"


def _reordered(pairs: list[tuple[Task, TaskDef]]) -> bool:
    before = sorted(pairs, key=lambda pair: (pair[0].position, pair[0].id))
    return [task.id for task, _ in before] != [task.id for task, _ in pairs]


def _head(snapshot: Snapshot, runbook: Runbook) -> Iterator[FieldChange]:
    meta = snapshot.meta
    for name in ("name", "title", "goal"):
        before, after = getattr(meta, name), getattr(runbook, name)
        if before != after:
            yield FieldChange(field=name, before=before, after=after)
    groups = {
        "params": runbook.params,
        "phases": runbook.phases,
        "roles": runbook.hosts,
        "limits": runbook.limits.values(),
        "budget": runbook.budget.limits(),
    }
    for name, values in groups.items():
        old = json.loads(meta.extra.get(name, "{}"))
        for key in dict.fromkeys((*old, *values)):
            if key not in old or key not in values or old[key] != values[key]:
                pair = (old.get(key), values.get(key))
                yield FieldChange(field=f"{name}.{key}", before=pair[0], after=pair[1])


def _affected(
    known: Mapping[str, Task], defs: tuple[TaskDef, ...], stale: set[str]
) -> Iterator[Affected]:
    """What needs a task that turns stale, in the order of the file; new tasks are not told."""
    by_id = {new.id: new for new in defs}
    below: set[str] = set()
    for name in topological(defs):
        if any(need.task in stale or need.task in below for need in by_id[name].needs):
            below.add(name)
    for new in defs:
        task = known.get(new.id)
        if new.id in below - stale and task is not None:
            yield Affected(task=task.id, state=task.state, effect=_below(task))


def _below(task: Task) -> str:
    if task.state is TaskState.DONE:
        return "stays done, with what the old results gave"
    if task.state in RUNNING:
        return "runs on, with the old results"
    if task.state in PENDING or task.state is TaskState.GATED:
        return "waits until the stale ones are settled"
    return f"stays {told_state(task)}"
