"""`runbook plan --cost`: hours, bytes and money, by task and by host, spent and to come."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from runbook import report
from runbook.brief import EDITED
from runbook.cli.common import answer, plain
from runbook.costs import HOUR, measure, spell
from runbook.families import Family, folded
from runbook.forecast import like_of
from runbook.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from runbook.costs import Costs, HostCost, TaskCost
    from runbook.forecast import Forecast
    from state import Snapshot

NONE = "-"
FEW = 2
"""Names that a cell lists."""


def tell_costs(workspace: Path, *, as_json: bool) -> None:
    """Prints the account of the graph as it is."""
    with Reader.open(workspace) as reader:
        snapshot = reader.snapshot()
        edited = reader.is_edited(snapshot)
    costs = measure(snapshot, datetime.now(UTC))
    if as_json:
        answer("plan", snapshot.revision, {"cost": plain(costs)})
        return
    tell(snapshot, costs)
    if edited:
        report.line(f"This is the graph as it was taken over. {report.located(EDITED)}")


def tell(snapshot: Snapshot, costs: Costs) -> None:
    """The account in tables, for a terminal of eighty columns."""
    every = list(_task_rows(snapshot, costs))
    known = [row for row in every if set(row[2:]) - {NONE, ""}]
    head: tuple[str, ...] = ("task", "host", "spent", "usd", "bytes", "to come", "usd", "estimate")
    _sheet(head, known)
    if not known:
        report.line(f"Nothing is known of {len(every)} tasks yet.")
    elif len(known) < len(every):
        report.line(f"({len(every) - len(known)} more, of which nothing is known yet)")
    report.line()
    head = ("host", "usd/h", "bound", "usd", "busy", "to come", "usd", "fits", "machine")
    _sheet(head, [_host_row(host) for host in costs.hosts])
    if not costs.hosts:
        report.line("No machine is bound: `runbook host bind ROLE USER@ADDRESS --usd-per-hour X`.")
    for whole, found in groupby(costs.machines, lambda one: (one.task, one.amount, one.of)):
        report.line()
        report.line(f"All of {whole[0]}, {whole[1]:,.0f} {whole[2]}, if one machine did it:")
        head = ("done on", "an hour", "takes", "usd/h", "usd", "tokens", "bytes", "machine")
        _sheet(head, [_machine_row(one) for one in found])
    report.line()
    report.line(_total(costs))
    if costs.critical_path:
        chain = " -> ".join(costs.critical_path)
        report.line(f"At the earliest done in {spell(costs.critical_hours)}: {chain}")


def _sheet(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Without the columns that say nothing in any row."""
    said = [any(row[i] not in (NONE, "") for row in rows) for i in range(len(head))]
    lean = [
        tuple(cell for cell, keep in zip(row, said, strict=True) if keep) for row in [head, *rows]
    ]
    report.sheet(lean if rows else [], width=report.WIDTH)


def _task_rows(snapshot: Snapshot, costs: Costs) -> Iterable[tuple[str, ...]]:
    by_task = {row.task: row for row in costs.tasks}
    for row in folded(snapshot.tasks):
        if isinstance(row, Family):
            name, tasks = f"{row.name}[*]", list(row.tasks)
        else:
            name, tasks = row.id, [row]
        waits = dict.fromkeys(like["like"] for task in tasks if (like := like_of(task)))
        yield _row(name, [by_task[task.id] for task in tasks], waits)


def _row(name: str, rows: list[TaskCost], like: Iterable[str]) -> tuple[str, ...]:
    """`like`: what the estimate is taken from, once that is measured."""
    hours = sum(row.hours for row in rows)
    size = sum(row.bytes for row in rows)
    coming = [row.to_come for row in rows if row.to_come is not None]
    to_come = sum(estimate.seconds for estimate in coming) / HOUR
    hosts = list(dict.fromkeys(row.host or NONE for row in rows))
    return (
        name,
        ", ".join(hosts) if len(hosts) <= FEW else f"{len(hosts)} hosts",
        _hours(hours) if hours else NONE,
        _sum(row.usd for row in rows),
        report.size(size) if size else NONE,
        _hours(to_come) if coming else NONE,
        _sum(row.to_come_usd for row in rows),
        _few(estimate.source for estimate in coming)
        or ("" if hours else _few(f"after {name}" for name in like)),
    )


def _few(names: Iterable[str]) -> str:
    """Each once, and of many their number."""
    first, *more = dict.fromkeys(names) or [""]
    if len(more) < FEW:
        return ", ".join([first, *more])
    return f"{first} and {len(more)} more"


def _host_row(host: HostCost) -> tuple[str, ...]:
    ends = f"until {host.ends_at}" if host.ends_at else ""
    return (
        host.role,
        _usd(host.usd_per_hour),
        _hours(host.bound_hours),
        _usd(host.bound_usd),
        _hours(host.busy_hours),
        _hours(host.to_come_hours),
        _usd(host.to_come_usd),
        {None: NONE, True: "yes", False: "NO"}[host.fits],
        ", ".join(part for part in (host.machine, report.clean(host.gpus), ends) if part),
    )


def _machine_row(found: Forecast) -> tuple[str, ...]:
    return (
        found.role,
        f"{found.per_hour:,.0f}",
        _hours(found.hours),
        _usd(found.usd_per_hour),
        _usd(found.usd),
        f"{found.tokens / 1e6:,.0f} M" if found.tokens is not None else NONE,
        report.size(found.bytes) if found.bytes is not None else NONE,
        found.machine,
    )


def _hours(value: float) -> str:
    """Short, for a column: nobody adds minutes to days."""
    if value < 1:
        return spell(value)
    return f"{value:.1f} h" if value < 10 else f"{value:,.0f} h"


def _total(costs: Costs) -> str:
    priced = costs.spent_usd or any(host.usd_per_hour is not None for host in costs.hosts)
    usd = f"${costs.spent_usd:,.2f}" if priced else "an unknown price"
    said = f"Spent: {spell(costs.spent_hours)} of tasks, {usd} for machines"
    if costs.earlier_usd:
        said += f" (${costs.earlier_usd:,.2f} of it before the present rental or price)"
    said += f".\nTo come: {_to_come(costs)}."
    limits = {"hours": lambda most: spell(most), "usd": lambda most: f"${most:,.2f}"}
    if costs.budget:
        said += " Budget: " + ", ".join(limits[k](most) for k, most in costs.budget.items()) + "."
    return said


def _to_come(costs: Costs) -> str:
    """Money for what is left; nothing is not said to be free for want of a price."""
    hours = sum(row.to_come.seconds for row in costs.tasks if row.to_come) / HOUR
    if not hours:
        return "nothing that is known"
    coming = [row for row in costs.tasks if row.to_come and row.host]
    priced = [row.to_come_usd for row in coming if row.to_come_usd is not None]
    free = {row.host or "" for row in coming if row.to_come_usd is None}
    usd = f"${sum(priced):,.2f}"
    if not free:
        return f"{usd} as far as it is known"
    bound = min(free) in {host.role for host in costs.hosts}
    unbound = f"`runbook host bind {min(free)} USER@ADDRESS --usd-per-hour X`"
    rent = f"`runbook host rent {min(free)} --usd-per-hour X`"
    hint = report.located(rent if bound else unbound)
    if not sum(priced):
        return f"{spell(hours)}, at an unknown price ({hint})"
    return f"{spell(hours)}, {usd} and more (no price for {', '.join(sorted(free))}: {hint})"


def _sum(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _usd(sum(known)) if known else NONE


def _usd(value: float | None) -> str:
    return NONE if value is None else f"${value:,.2f}"
