"""Which yes of a person a task needs before it starts: to its gate, to its budget, or to both."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from runbook.costs import HOUR, Estimates, measure, parse, seconds, spell
from runbook.reasons import OVER_BUDGET, RENTAL, WAITS_FOR_PERSON
from state import HostBinding, Snapshot, Task, TaskKind, UnknownHost

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
    if task.kind is TaskKind.MANUAL or is_allowed(snapshot, task):
        return ""
    if late := too_late(snapshot, task, now):
        return f"{RENTAL}{late}"
    much = too_much(snapshot, task, now)
    return f"{OVER_BUDGET}{much}" if much else ""


def is_approved(snapshot: Snapshot, task: Task) -> bool:
    """Whether a person said yes to the gate of this task as it is defined now."""
    return any(
        yes.about == "gate" and yes.task == task.id and yes.definition_hash == task.definition_hash
        for yes in snapshot.approvals
    )


def is_allowed(snapshot: Snapshot, task: Task) -> bool:
    """Whether a person said yes to this start; the next one is asked for anew."""
    latest = snapshot.latest_attempt(task.id)
    attempts = latest.number if latest else 0
    return any(
        yes.about == "budget"
        and yes.task == task.id
        and yes.definition_hash == task.definition_hash
        and yes.attempts == attempts
        for yes in snapshot.approvals
    )


def too_late(snapshot: Snapshot, task: Task, now: datetime) -> str:
    """Why the rental of its machine does not last for the task; empty if it does."""
    host = _host(snapshot, task)
    if host is None or host.ends_at is None:
        return ""
    left = (parse(host.ends_at) - now).total_seconds() / HOUR
    if left <= 0:
        return f"ended: that of {host.role}, at {host.ends_at[:10]} {host.ends_at[11:16]}Z"
    if task.kind is TaskKind.SERVICE:
        return ""  # it ends when it is no longer needed
    hours, takes = _takes(snapshot, task)
    ends = f"too short: it {takes}, and that of {host.role} ends in {spell(left)}"
    return ends if hours > left else ""


def too_much(snapshot: Snapshot, task: Task, now: datetime) -> str:
    """Why starting the task now would break a budget; empty if it would not."""
    budget = task.definition.get("budget") or {}
    total = json.loads(snapshot.meta.extra.get("budget", "{}"))
    if not budget and not total:
        return ""
    host = _host(snapshot, task)
    hours, takes = _takes(snapshot, task)
    own_hours = sum(seconds(attempt, now) for attempt in snapshot.attempts_of(task.id)) / HOUR
    price = host.usd_per_hour if host else None
    found = _beyond(budget, own_hours, own_hours * (price or 0.0), hours, price, "its budget")
    if found or not total:
        return f"it {takes}; {found}" if found else ""
    all_ = measure(snapshot, now)
    found = _beyond(total, all_.spent_hours, all_.spent_usd, hours, price, "the budget")
    return f"it {takes}; {found}" if found else ""


def _host(snapshot: Snapshot, task: Task) -> HostBinding | None:
    try:
        return snapshot.host(task.role or "")
    except UnknownHost:
        return None


def _takes(snapshot: Snapshot, task: Task) -> tuple[float, str]:
    """Hours, 0 where nothing is known, and the same in words."""
    estimate = Estimates(snapshot).of(task)
    if estimate is None:
        return 0.0, "has no estimate"
    hours = estimate.seconds / HOUR
    return hours, f"needs about {spell(hours)} ({estimate.source})"


def _beyond(
    budget: dict[str, float],
    spent_hours: float,
    spent_usd: float,
    hours: float,
    price: float | None,
    whose: str,
) -> str:
    most = budget.get("hours")
    if most is not None and (spent_hours + hours > most or spent_hours >= most):
        return f"{whose} is {spell(most)}, {spell(spent_hours)} are spent"
    most, money = budget.get("usd"), hours * (price or 0.0)
    if most is not None and (spent_usd + money > most or spent_usd >= most):
        more = f", and it would cost ${money:,.2f}" if money else ""
        return f"{whose} is ${most:,.2f}, ${spent_usd:,.2f} are spent{more}"
    return ""
