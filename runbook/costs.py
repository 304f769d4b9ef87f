"""Hours and money: what was spent, and what is still to come. `approvals` holds starts against it.

Pure, from one snapshot and the present time. A machine is paid for by the hour whatever runs on
it, so money is counted twice over: by task (its own hours at its machine's price) and by host (the
hours in which anything ran there, each counted once, and the whole time since it was bound).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

from runbook.forecast import LIKE, forecasts, rental_of, seconds_it_ran, seconds_of, went_well
from state import Snapshot, Task, TaskState, UnknownHost
from state.graph import critical_path, family_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from runbook.forecast import Forecast
    from state import Attempt, HostBinding, Rental

HOUR = 3600.0
LEFT_TO_DO = frozenset(
    {
        *(TaskState.DRAFT, TaskState.BLOCKED, TaskState.READY, TaskState.GATED),
        *(TaskState.FAILED, TaskState.STALE, TaskState.ATTENTION),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long one attempt of a task takes, and how that is known."""

    seconds: float
    source: str
    """`measured` on an attempt that went well, by the rate `of` another task, or `stated`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCost:
    """One task, as far as time and money go. `usd` is None where no price is known."""

    task: str
    host: str | None
    state: str
    hours: float
    usd: float | None
    bytes: int
    to_come: Estimate | None
    to_come_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCost:
    """One machine behind a role: what it costs, and what is still to run on it."""

    role: str
    machine: str
    usd_per_hour: float | None
    ends_at: str | None
    bound_hours: float
    bound_usd: float | None
    """The whole time since it was bound, idle or not."""
    busy_hours: float
    to_come_hours: float
    """Of tasks whose time is known, one after the other."""
    to_come_usd: float | None
    fits: bool | None
    """Whether that fits before its rental ends; None when it has no end."""
    gpus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Everything, and the budget it is held against."""

    tasks: tuple[TaskCost, ...]
    hosts: tuple[HostCost, ...]
    spent_hours: float
    spent_usd: float
    earlier_usd: float
    """Of `spent_usd`: for machines that were given back."""
    budget: dict[str, float]
    critical_path: tuple[str, ...]
    """The chain of tasks to come that takes longest, as far as times are known."""
    critical_hours: float
    machines: tuple[Forecast, ...]
    """What large tasks take by the rate of small ones, on each machine on which those ran."""


def measure(snapshot: Snapshot, now: datetime) -> Costs:
    """The whole account."""
    estimates = Estimates(snapshot)
    stored: Counter[str] = Counter()
    for item in snapshot.artifacts:
        stored[item.task] += item.size
    tasks = tuple(
        _task_cost(snapshot, task, stored[task.id], estimates, now)
        for task in snapshot.tasks
        if not task.removed
    )
    hosts = tuple(_host_cost(snapshot, host, tasks, now) for host in snapshot.hosts)
    earlier = sum(
        _rental_usd(rental, now) or 0.0 for rental in snapshot.rentals if rental.until is not None
    )
    coming = {row.task: row.to_come.seconds for row in tasks if row.to_come}
    path = critical_path([snapshot.task(row.task) for row in tasks], coming)
    return Costs(
        critical_path=tuple(name for name in path if name in coming),
        critical_hours=sum(coming.get(name, 0.0) for name in path) / HOUR,
        machines=forecasts(snapshot),
        tasks=tasks,
        hosts=hosts,
        spent_hours=sum(task.hours for task in tasks),
        spent_usd=earlier + sum(host.bound_usd or 0.0 for host in hosts),
        earlier_usd=earlier,
        budget=json.loads(snapshot.meta.extra.get("budget", "{}")),
    )


def account(snapshot: Snapshot, at: str) -> tuple[tuple[str, ...], ...]:
    """Rows for PROGRESS.md: allowed, spent, and by machine; none where money and time are no topic.

    As of `at`, the time of the revision that is shown, so that one revision has one account.
    """
    found = measure(snapshot, parse(at))
    priced = [host for host in found.hosts if host.usd_per_hour is not None or host.ends_at]
    if not found.budget and not priced:
        return ()
    rows = []
    if found.budget:
        hours, usd = found.budget.get("hours"), found.budget.get("usd")
        allowed = (f"{hours:g}" if hours is not None else "", _money(usd))
        rows.append(("allowed", *allowed))
    rows.append((f"spent as of {at[:16]}", f"{found.spent_hours:.2f}", _money(found.spent_usd)))
    for host in priced:
        price = f" at {_money(host.usd_per_hour)} an hour" if host.usd_per_hour is not None else ""
        ends = f", rental ends {host.ends_at}" if host.ends_at else ""
        what = f"{host.role}{price}{ends}"
        rows.append((what, f"{host.bound_hours:.2f}", _money(host.bound_usd)))
    return tuple(rows)


def told(snapshot: Snapshot, at: str) -> list[str]:
    """The account in lines for the brief, as of a revision's time."""
    found = measure(snapshot, parse(at))
    rows = []
    limits = [
        f"{spell(found.spent_hours)} of {spell(most)}"
        if unit == "hours"
        else f"${found.spent_usd:,.2f} of ${most:,.2f}"
        for unit, most in found.budget.items()
    ]
    if limits:
        rows.append(f"spent of the budget, as of {at[:10]} {at[11:16]}Z: {', '.join(limits)}")
    for host in found.hosts:
        if host.ends_at is None and host.usd_per_hour is None:
            continue
        ends_at = host.ends_at or ""
        parts = [f"rental ends {ends_at[:10]} {ends_at[11:16]}Z"] if ends_at else []
        if host.usd_per_hour is not None:
            parts.append(f"${host.usd_per_hour:,.2f} an hour, ${host.bound_usd or 0:,.2f} so far")
        if host.to_come_hours:
            fits = " and do NOT fit before its end" if host.fits is False else ""
            parts.append(f"about {spell(host.to_come_hours)} to come there{fits}")
        rows.append(f"`{host.role}`: {'; '.join(parts)}")
    return rows


def _money(usd: float | None) -> str:
    return "" if usd is None else f"{usd:,.2f}"


# -- estimates --------------------------------------------------------------------------------


class Estimates:
    """How long tasks take: measured where it can be, else as the file says."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._by_task: defaultdict[str, list[float]] = defaultdict(list)
        self._by_family: defaultdict[str, list[float]] = defaultdict(list)
        for attempt in snapshot.attempts:
            # Another definition may take another time: it says nothing of this one.
            task = snapshot.by_id.get(attempt.task)
            if task and attempt.ended_at and went_well(snapshot, task, attempt):
                took = seconds_it_ran(attempt)
                self._by_task[attempt.task].append(took)
                self._by_family[family_of(attempt.task)].append(took)

    def of(self, task: Task) -> Estimate | None:
        """Of the task itself, others of its family, a smaller one like it, or as stated."""
        for known in (self._by_task.get(task.id), self._by_family.get(family_of(task.id))):
            if known:
                return Estimate(seconds=median(known), source="measured")
        by_rate = seconds_of(self._snapshot, task)
        if by_rate is not None:
            return Estimate(seconds=by_rate, source=f"rate of {task.definition[LIKE]['like']}")
        stated = task.definition.get("estimate_s")
        return None if stated is None else Estimate(seconds=float(stated), source="stated")


# -- the rows ---------------------------------------------------------------------------------


def _task_cost(
    snapshot: Snapshot, task: Task, stored: int, estimates: Estimates, now: datetime
) -> TaskCost:
    attempts = snapshot.attempts_of(task.id)
    hours = sum(seconds(attempt, now) for attempt in attempts) / HOUR
    paid = [_attempt_usd(snapshot, attempt, now) for attempt in attempts]
    known = [usd for usd in paid if usd is not None]
    to_come = estimates.of(task) if task.state in LEFT_TO_DO else None
    price = _price(snapshot, task.role)
    size = task.out.get("bytes")
    return TaskCost(
        task=task.id,
        host=task.role,
        state=task.state.value,
        hours=hours,
        usd=sum(known) if known else None,
        bytes=stored or (int(size) if isinstance(size, int | float) else 0),
        to_come=to_come,
        to_come_usd=None if to_come is None or price is None else to_come.seconds / HOUR * price,
    )


def _host_cost(
    snapshot: Snapshot, host: HostBinding, tasks: Sequence[TaskCost], now: datetime
) -> HostCost:
    rentals = [rental for rental in snapshot.rentals if rental.role == host.role]
    bound = next((rental for rental in rentals if rental.until is None), None)
    coming = sum(t.to_come.seconds for t in tasks if t.host == host.role and t.to_come) / HOUR
    price = host.usd_per_hour
    left = None if host.ends_at is None else (parse(host.ends_at) - now).total_seconds() / HOUR
    return HostCost(
        role=host.role,
        machine=host.machine,
        usd_per_hour=price,
        ends_at=host.ends_at,
        bound_hours=_between(bound.since, now.isoformat()) / HOUR if bound else 0.0,
        bound_usd=_rental_usd(bound, now) if bound else None,
        busy_hours=busy_seconds(_of_host(snapshot, host.role), now) / HOUR,
        to_come_hours=coming,
        to_come_usd=None if price is None else coming * price,
        fits=None if left is None else coming <= left,
        gpus=_gpus(host),
    )


def _gpus(host: HostBinding) -> str:
    names = [str(gpu.get("name", "GPU")) for gpu in host.facts.get("gpus") or ()]
    kinds = dict.fromkeys(names)
    return ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds)


def _of_host(snapshot: Snapshot, role: str) -> list[Attempt]:
    return [attempt for attempt in snapshot.attempts if attempt.host == role]


def busy_seconds(attempts: Iterable[Attempt], now: datetime) -> float:
    """The time in which at least one of them ran."""
    spans = sorted(
        (parse(a.created_at), parse(a.ended_at) if a.ended_at else now) for a in attempts
    )
    total, until = 0.0, None
    for begun, ended in spans:
        start = begun if until is None else max(begun, until)
        total += max(0.0, (ended - start).total_seconds())
        until = ended if until is None else max(until, ended)
    return total


def _attempt_usd(snapshot: Snapshot, attempt: Attempt, now: datetime) -> float | None:
    """At the price of the machine that the role had when it began."""
    rental = rental_of(snapshot, attempt)
    price = rental.usd_per_hour if rental else None
    return None if price is None else seconds(attempt, now) / HOUR * price


def _rental_usd(rental: Rental, now: datetime) -> float | None:
    if rental.usd_per_hour is None:
        return None
    return _between(rental.since, rental.until or now.isoformat()) / HOUR * rental.usd_per_hour


def _price(snapshot: Snapshot, role: str | None) -> float | None:
    try:
        return snapshot.host(role or "").usd_per_hour
    except UnknownHost:
        return None


def seconds(attempt: Attempt, now: datetime) -> float:
    return _between(attempt.created_at, attempt.ended_at or now.isoformat())


def _between(begun: str, ended: str) -> float:
    return max(0.0, (parse(ended) - parse(begun)).total_seconds())


def parse(text: str) -> datetime:
    """A stored time."""
    return datetime.fromisoformat(text)


def spell(hours: float) -> str:
    """`17 h`, `3 h 10 min`, `25 min`, `40 s`."""
    seconds = round(hours * HOUR)
    if seconds < 120:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes % 60 else f"{minutes // 60} h"
