"""`dflash plan time`: FLOPs, hours per epoch and days in all, on the GPUs asked for and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.plan_inputs import GIB, GPUS
from dflash.plan_report import PlanReport, Said, Table, duration
from dflash.plan_storage import is_seed_size
from dflash.plan_topology import assumptions, cost, splits, title

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash.plan_inputs import Machine, Work

SEED_DAYS = 16.5


def plan_time(work: Work, machine: Machine, sized: Callable[[str], Machine]) -> PlanReport:
    """The chosen GPUs, and as many of each other kind; `sized` makes a machine of one by name."""
    rows, numbers = [], {}
    for key, gpu in GPUS.items():
        here = machine if gpu == machine.gpu else sized(key)
        best = splits(work, here)[0]
        epoch = work.documents / best.docs_per_s
        fits = "fits" if best.fits else f"{best.too_much / GIB:,.1f} GiB too much"
        rows.append(
            (
                f"{here.count} x {gpu.name}" + (" *" if here is machine else ""),
                best.name,
                f"{best.docs_per_s * work.tokens:,.0f}",
                duration(epoch),
                duration(epoch * work.epochs),
                fits,
            )
        )
        numbers[key] = best.to_json(work) | {"seconds": epoch * work.epochs}
    chosen = splits(work, machine)[0]
    one, total = cost(work, machine), work.documents / chosen.docs_per_s * work.epochs
    flops = work.documents * (one.target_flops + one.drafter_flops)
    share = one.target_flops * work.documents / flops
    lack = f"It does not fit: {chosen.too_much / GIB:,.1f} GiB too much."
    lacking = () if chosen.fits else (lack,)
    columns = ("GPUs", "split", "tok/s", "epoch", "in all", "memory")
    said = Said(what="training", said=f"{SEED_DAYS:g} days", computed=_on(machine, total, work))
    return PlanReport(
        kind="time",
        title=title(work, machine, one),
        tables=(Table(columns=columns, rows=tuple(rows)),),
        numbers={"flops_per_epoch": flops, "seconds": total, "gpus": numbers},
        conclusion=(
            (
                f"One epoch is {flops / 1e18:,.1f} EFLOP, {share:.0%} of it the target's; "
                f"{_on(machine, total, work)}."
            ),
            *lacking,
        ),
        assumptions=(
            *assumptions(work, machine),
            "the other GPUs: the same fractions of their peaks, and their own best link",
            "* the GPUs asked for",
        ),
        said=(said,) if is_seed_size(work) else (),
    )


def _on(machine: Machine, seconds: float, work: Work) -> str:
    epochs = "one epoch" if work.epochs == 1 else f"{work.epochs:g} epochs"
    return f"{duration(seconds)} for {epochs} on {machine.count} x {machine.gpu.name}"
