"""`dflash plan topology`: how many GPUs run the target, how many train, how fast, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.plan_inputs import GIB, LINKS, Machine, Work, link_speed
from dflash.plan_memory import colocated_memory, drafter_memory, target_memory
from dflash.plan_report import PlanReport, Said, Table, duration, size
from dflash.plan_shapes import drafter_flops, drafter_parameters
from dflash.plan_storage import is_seed_size

if TYPE_CHECKING:
    from collections.abc import Sequence

SEED_TRANSFER_S = 0.019


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one document on one GPU of each role, in seconds, and its states in bytes."""

    target_flops: float
    drafter_flops: float
    target_s: float
    drafter_s: float
    state_bytes: float

    @property
    def target_share(self) -> float:
        """Part of the GPUs that would run the target if GPUs could be divided."""
        return self.target_s / (self.target_s + self.drafter_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One way to divide the GPUs. `targets` is 0 when every GPU does both."""

    targets: int
    drafters: int
    micro_batches: int
    docs_per_s: float
    limit: str
    target_busy: float
    drafter_busy: float
    too_much: float
    """Bytes that the fuller role lacks; 0: it fits."""

    @property
    def fits(self) -> bool:
        return self.too_much <= 0

    @property
    def name(self) -> str:
        return f"{self.targets}:{self.drafters}" if self.targets else "colocated"

    @property
    def flags(self) -> str:
        tail = f"--drafters {self.drafters} --micro-batches {self.micro_batches}"
        return f"--targets {self.targets} {tail}" if self.targets else f"--colocated {tail}"

    def to_json(self, work: Work) -> dict[str, Any]:
        return {
            "name": self.name,
            "targets": self.targets,
            "drafters": self.drafters,
            "micro_batches": self.micro_batches,
            "tokens_per_s": self.docs_per_s * work.tokens,
            "hours_per_epoch": work.documents / self.docs_per_s / 3600,
            "limit": self.limit,
            "target_busy": self.target_busy,
            "drafter_busy": self.drafter_busy,
            "fits": self.fits,
            "flags": self.flags,
        }


def cost(work: Work, machine: Machine) -> Cost:
    """FLOPs of one document over the rate reached.

    Source: formulas in plan_shapes; the target runs to its last tap and never its head; the
    states of a document are its tokens x taps x hidden size in bf16.
    """
    target = work.target.forward_flops(work.tokens, layers=work.target_layers, head=False)
    drafter = drafter_flops(work.drafter, work.tokens, work.anchors).total
    return Cost(
        target_flops=target,
        drafter_flops=drafter,
        target_s=target / (machine.target_tflops * 1e12),
        drafter_s=drafter / (machine.drafter_tflops * 1e12),
        state_bytes=work.tokens * work.state_bytes(),
    )


def all_reduce_s(work: Work, machine: Machine, ranks: int) -> float:
    """A ring all-reduce moves 2 (n-1)/n of the fp32 gradients over each rank's link."""
    moved = 2 * (ranks - 1) / ranks * 4 * drafter_parameters(work.drafter)
    return moved / (machine.link_gb_s * 1e9)


def _once_a_step(work: Work, machine: Machine, ranks: int) -> float:
    return machine.optimiser_s + all_reduce_s(work, machine, ranks)


def divided(work: Work, machine: Machine, targets: int, drafters: int) -> Split:
    """Targets and drafters overlap: the slowest of targets, drafters and links sets the pace."""
    one, micro = cost(work, machine), _rounded(work.micro_batches, drafters)
    docs = micro * work.batch_docs
    step = docs / drafters * one.drafter_s + _once_a_step(work, machine, drafters)
    busiest = min(targets, drafters)  # each link of the scarcer role carries its share
    rates = {
        "targets": targets / one.target_s,
        "drafters": docs / step,
        "link": busiest * machine.link_gb_s * 1e9 / one.state_bytes,
    }
    limit = min(rates, key=lambda name: rates[name])
    capacity = machine.gpu.memory_gib * GIB
    margins = (
        target_memory(work, capacity).margin,
        drafter_memory(work, capacity, targets=targets, drafters=drafters).margin,
    )
    return Split(
        targets=targets,
        drafters=drafters,
        micro_batches=micro,
        docs_per_s=rates[limit],
        limit=limit,
        target_busy=rates[limit] / rates["targets"],
        drafter_busy=rates[limit] / rates["drafters"],
        too_much=max(0.0, -min(margins)),
    )


def together(work: Work, machine: Machine) -> Split:
    """Every GPU runs the target and then trains: no states travel, nothing waits but the sum."""
    one, count = cost(work, machine), machine.count
    micro = _rounded(work.micro_batches, count)
    docs = micro * work.batch_docs
    step = docs / count * (one.target_s + one.drafter_s) + _once_a_step(work, machine, count)
    memory = colocated_memory(work, machine.gpu.memory_gib * GIB, drafters=count)
    return Split(
        targets=0,
        drafters=count,
        micro_batches=micro,
        docs_per_s=docs / step,
        limit="both",
        target_busy=one.target_share,
        drafter_busy=1 - one.target_share,
        too_much=max(0.0, -memory.margin),
    )


def splits(work: Work, machine: Machine) -> tuple[Split, ...]:
    """All of them, the fastest first; after those that fit, those that lack the least memory."""
    count = machine.count
    found = [divided(work, machine, m, count - m) for m in range(1, count)]
    found.append(together(work, machine))
    return tuple(sorted(found, key=lambda one: (one.too_much, -one.docs_per_s)))


def best_divided(found: Sequence[Split]) -> Split | None:
    return next((one for one in found if one.targets), None)


def plan_topology(work: Work, machine: Machine) -> PlanReport:
    found, one = splits(work, machine), cost(work, machine)
    rows = tuple(
        (
            split.name,
            f"{split.docs_per_s * work.tokens:,.0f}",
            duration(work.documents / split.docs_per_s),
            f"{split.target_busy:.0%}",
            f"{split.drafter_busy:.0%}",
            split.limit,
            "fits" if split.fits else f"{split.too_much / GIB:,.1f} GiB too much",
        )
        for split in found
    )
    columns = ("split", "tok/s", "epoch", "target", "drafter", "limit", "memory")
    batch = work.batch_docs * one.state_bytes
    return PlanReport(
        kind="topology",
        title=title(work, machine, one),
        tables=(Table(columns=columns, rows=rows), _transfers(work, machine, one)),
        numbers={
            "target_parameters": work.target.parameters,
            "drafter_parameters": drafter_parameters(work.drafter),
            "target_flops_per_document": one.target_flops,
            "drafter_flops_per_document": one.drafter_flops,
            "target_share": one.target_share,
            "batch_state_bytes": batch,
            "splits": [split.to_json(work) for split in found],
            "best": found[0].to_json(work) if found[0].fits else None,
        },
        conclusion=_why(work, machine, found, one),
        assumptions=assumptions(work, machine),
        said=_transfer_said(work, machine, batch),
    )


def title(work: Work, machine: Machine, one: Cost) -> str:
    return (
        f"{work.documents:,} documents x {work.tokens:,.0f} tokens on {machine.count} x "
        f"{machine.gpu.name}; a document costs the target {one.target_flops / 1e12:,.1f} TFLOP, "
        f"the drafter {one.drafter_flops / 1e12:,.1f}"
    )


def _why(work: Work, machine: Machine, found: Sequence[Split], one: Cost) -> tuple[str, ...]:
    best, apart = found[0], best_divided(found)
    lines = [
        (
            f"A document takes a target GPU {duration(one.target_s)} and a drafter GPU "
            f"{duration(one.drafter_s)}: {one.target_share:.0%} of the work is the target's, "
            f"{one.target_share * machine.count:.1f} of {machine.count} GPUs."
        )
    ]
    if not best.fits:
        lines.append(
            f"No split fits {machine.gpu.name}; the best lacks {best.too_much / GIB:,.1f} GiB. "
            "`dflash plan memory` shows of what."
        )
    elif best.targets:
        other = next(split for split in found if not split.targets)
        why = "does not fit" if not other.fits else "is slower: its all-reduce spans every GPU"
        lines.append(f"Best: {best.name}, limited by its {best.limit}; colocated {why}.")
    else:
        lines.append("Best: colocated, which leaves no GPU waiting and sends no states.")
        if apart is not None and apart.fits:
            lost = 1 - apart.docs_per_s / best.docs_per_s
            lines.append(
                f"Best of the divided: {apart.name}, {lost:.0%} slower (limited by its "
                f"{apart.limit}): {apart.flags}"
            )
    if best.fits:
        lines.append(f"dflash train {best.flags}")
        if best.micro_batches != work.micro_batches:
            lines.append("(--micro-batches must divide evenly over the drafters)")
    return tuple(lines)


def _transfers(work: Work, machine: Machine, one: Cost) -> Table:
    """Bytes of a micro-batch's states over each link, beside the target's time for the batch."""
    batch = work.batch_docs * one.state_bytes
    forward = work.batch_docs * one.target_s
    speeds = {name: link_speed(machine.gpu, name) for name in LINKS}
    speeds[machine.link] = machine.link_gb_s
    rows = tuple(
        (
            name,
            size(batch),
            duration(batch / (speed * 1e9)),
            f"{batch / (speed * 1e9) / forward:.1%}",
        )
        for name, speed in speeds.items()
        if speed
    )
    return Table(columns=("link", "a batch", "takes", "of its forward"), rows=rows)


def _transfer_said(work: Work, machine: Machine, batch: float) -> tuple[Said, ...]:
    if not is_seed_size(work):
        return ()
    taken = batch / (machine.link_gb_s * 1e9)
    needed = batch / SEED_TRANSFER_S / 1e9
    return (
        Said(
            what="transfer of a batch",
            said=duration(SEED_TRANSFER_S),
            computed=(
                f"{duration(taken)} over {machine.link} for {size(batch)} "
                f"({duration(SEED_TRANSFER_S)} would be {needed:,.0f} GB/s)"
            ),
        ),
    )


def assumptions(work: Work, machine: Machine) -> tuple[str, ...]:
    return (
        *machine.assumptions,
        "states travel behind the computation; gradients too, in part, which is not counted",
        (
            f"the target stops after layer {work.target_layers - 1} of {work.target.depth}; "
            "rows are full (length-bucketed)"
        ),
        f"{work.anchors} blocks a document are computed, also where it has fewer anchors",
        "every document has the mean length; longer ones weigh a little more in attention",
        "no checkpoints, evaluation or start-up counted",
    )


def _rounded(micro_batches: int, ranks: int) -> int:
    """The trainer asks that micro-batches divide evenly over drafter ranks."""
    return math.ceil(micro_batches / ranks) * ranks
