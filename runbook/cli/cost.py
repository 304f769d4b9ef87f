"""`runbook plan --cost`: hours, bytes and money, by task and by host, spent and to come."""

from __future__ import annotations

from datetime import UTC, datetime
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


def tell_costs(workspace: Path, *, as_json: bool) -> None:
    """Prints the account of the graph as it is."""
    with Reader.open(workspace) as reader:
        snapshot = reader.snapshot()
        edited = reader.is_edited(snapshot)
    costs = measure(snapshot, datetime.now(UTC))
    if as_json:
        answer("plan", snapshot.revision, {"cost": plain(costs)})
        return
    head = ("task", "host", "spent", "usd", "bytes", "to come", "usd", "estimate")
    every = list(_task_rows(snapshot, costs))
    known = [row for row in every if set(row[2:]) - {NONE, ""}]
    report.table(_lean([head, *known]) if known else [], width=report.WIDTH)
    if len(known) < len(every):
        report.line(f"({len(every) - len(known)} more, of which nothing is known yet)")
    report.line()
    hosts = ("host", "machine", "usd/h", "bound", "usd", "busy", "to come", "usd", "fits", "GPUs")
    report.table(
        _lean([hosts, *map(_host_row, costs.hosts)]) if costs.hosts else [], width=report.WIDTH
    )
    if not costs.hosts:
        report.line("No machine is bound: `runbook host bind ROLE USER@ADDRESS --usd-per-hour X`.")
    if costs.machines:
        report.line()
        compared = ("all of", "if done on", "machine", "usd/h", "an hour", "takes", "usd", "tokens")
        report.table(
            _lean([(*compared, "bytes"), *map(_machine_row, costs.machines)]), width=report.WIDTH
        )
    report.line()
    report.line(_total(costs))
    if costs.critical_path:
        chain = " -> ".join(costs.critical_path)
        report.line(f"At the earliest done in {spell(costs.critical_hours)}: {chain}")
    if edited:
        report.line(f"This is the graph as it was taken over. {report.located(EDITED)}")


def _lean(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without the columns that say nothing in any row."""
    said = [any(row[i] not in (NONE, "") for row in rows[1:]) for i in range(len(rows[0]))]
    return [tuple(cell for cell, keep in zip(row, said, strict=True) if keep) for row in rows]


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
    return (
        name,
        ", ".join(dict.fromkeys(row.host or NONE for row in rows)),
        spell(hours) if hours else NONE,
        _sum(row.usd for row in rows),
        report.size(size) if size else NONE,
        spell(to_come) if coming else NONE,
        _sum(row.to_come_usd for row in rows),
        ", ".join(dict.fromkeys(estimate.source for estimate in coming))
        or ("" if hours else ", ".join(f"after {name}" for name in like)),
    )


def _host_row(host: HostCost) -> tuple[str, ...]:
    fits = {None: NONE, True: "yes", False: f"NO: ends {host.ends_at}"}[host.fits]
    return (
        host.role,
        host.machine,
        _usd(host.usd_per_hour),
        spell(host.bound_hours),
        _usd(host.bound_usd),
        spell(host.busy_hours),
        spell(host.to_come_hours),
        _usd(host.to_come_usd),
        fits,
        report.clean(host.gpus) or NONE,
    )


def _machine_row(found: Forecast) -> tuple[str, ...]:
    return (
        f"{found.task}: {found.amount:,.0f} {found.of}",
        found.role,
        found.machine,
        _usd(found.usd_per_hour),
        f"{found.per_hour:,.0f} {found.of}",
        spell(found.hours),
        _usd(found.usd),
        f"{found.tokens / 1e6:,.0f} M" if found.tokens is not None else NONE,
        report.size(found.bytes) if found.bytes is not None else NONE,
    )


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
    priced = [host.to_come_usd for host in costs.hosts if host.to_come_usd is not None]
    free = {host.role for host in costs.hosts if host.to_come_usd is None and host.to_come_hours}
    usd = f"${sum(priced):,.2f}" if sum(priced) or not free else "unknown"
    if not free:
        return f"{usd} as far as it is known"
    hint = report.located(f"`runbook host rent {min(free)} --usd-per-hour X`")
    if usd == "unknown":
        return f"{spell(hours)}, {usd} (no price: {hint})"
    return f"{spell(hours)}, {usd} and more (no price for {', '.join(sorted(free))}: {hint})"


def _sum(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return _usd(sum(known)) if known else NONE


def _usd(value: float | None) -> str:
    return NONE if value is None else f"${value:,.2f}"
