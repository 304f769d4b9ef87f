"""Which yes of a person a task needs before it starts: to its gate, to its budget, or to both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook import costs
from runbook.reasons import OVER_BUDGET, RENTAL, WAITS_FOR_PERSON
from state import Snapshot, Task, TaskKind

if TYPE_CHECKING:
    from datetime import datetime


def question(snapshot: Snapshot, task: Task, now: datetime) -> str:
    """What a person is asked before the task starts; empty when nobody need be asked.

    One question about everything, so that one yes is enough.
    """
    asked, why = gate_question(snapshot, task), over_budget(snapshot, task, now)
    return "; ".join(part for part in (why, asked and f"{WAITS_FOR_PERSON}{asked}") if part)


def gate_question(snapshot: Snapshot, task: Task) -> str:
    """What its gate, or what a person has to do, asks; empty without one, or once it has a yes."""
    gate = task.definition.get("gate")
    if task.kind is not TaskKind.MANUAL and (not gate or is_approved(snapshot, task)):
        return ""
    return str((gate or task.definition["with"]).get("ask", task.title))


def over_budget(snapshot: Snapshot, task: Task, now: datetime) -> str:
    """Why it would spend too much, or outlast a rental; empty when a person said yes to it."""
    if task.kind is TaskKind.MANUAL or costs.is_allowed(snapshot, task):
        return ""
    if late := costs.too_late(snapshot, task, now):
        return f"{RENTAL}{late}"
    much = costs.too_much(snapshot, task, now)
    return f"{OVER_BUDGET}{much}" if much else ""


def is_approved(snapshot: Snapshot, task: Task) -> bool:
    """Whether a person said yes to the gate of this task as it is defined now."""
    return any(
        yes.about == "gate" and yes.task == task.id and yes.definition_hash == task.definition_hash
        for yes in snapshot.approvals
    )
