"""Visibility as intervals: a slot sees one run of context tokens and one run of block rows.

That is what `attention.visible` says for a packed row whose documents lie one after the other and
whose blocks are contiguous. Intervals cost four numbers a slot, and tell a kernel at once which
tiles are empty and which need no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.attention import Layout
    from dflash.config import DrafterConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What each query row sees of one sequence of keys: those from `low` up to `high`."""

    low: Tensor  # [q] int32
    high: Tensor  # [q] int32, equal to low when it sees nothing
    keys: int

    def mask(self) -> Tensor:
        """[q, keys], for the reference."""
        at = torch.arange(self.keys, device=self.low.device)[None]
        return (at >= self.low[:, None]) & (at < self.high[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Both runs of some query rows, with the tile tables that kernels asked for."""

    context: Run
    block: Run
    tables: dict[tuple[str, bool, int, int], Tensor] = field(default_factory=dict)

    def by_rows(self, name: str, rows: int, keys: int) -> Tensor:
        """[row tiles, 4]: key tiles first, first whole, last whole, last of each tile of rows."""
        found = self.tables.get((name, True, rows, keys))
        if found is None:
            run = self.context if name == "context" else self.block
            found = self.tables[name, True, rows, keys] = _by_rows(run, rows, keys)
        return found

    def by_keys(self, name: str, rows: int, keys: int) -> Tensor:
        """[key tiles, 4]: row tiles first, first whole, last whole, last of each tile of keys."""
        found = self.tables.get((name, False, rows, keys))
        if found is None:
            run = self.context if name == "context" else self.block
            found = self.tables[name, False, rows, keys] = _by_keys(run, rows, keys)
        return found


def spans_by_layer(config: DrafterConfig, layout: Layout, rows: Tensor | None) -> list[Spans]:
    """Of each layer; layers of one kind share them. `rows` counts for the last layer alone."""
    made: dict[tuple[int | None, bool, bool], Spans] = {}
    found = []
    for i in range(config.num_layers):
        last = rows is not None and i == config.num_layers - 1
        kind = (config.window_of(i), config.causal_of(i), last)
        if kind not in made:
            made[kind] = spans_of(
                layout, window=kind[0], causal=kind[1], rows=rows if last else None
            )
        found.append(made[kind])
    return found


def spans_of(
    layout: Layout, *, window: int | None, causal: bool, rows: Tensor | None = None
) -> Spans:
    """The rule of `attention.visible`; `rows`: of these query rows only."""
    count, size = len(layout.block_pos), len(layout.context_pos)
    at = torch.arange(max(count, size), device=layout.block_pos.device)
    start = _first_of(layout.context_doc.clamp_min(-1) + 1, at[:size], size)
    start = start[layout.block_doc.clamp_min(-1) + 1]
    low = torch.zeros_like(layout.block_pos)
    if window is not None:
        low = (layout.block_pos - window + 1).clamp_min(0)
    high = torch.maximum(layout.block_anchor, low)
    valid = layout.block_doc >= 0
    context_low = torch.where(valid, start + low, 0)
    context_high = torch.where(valid, start + high, 0)
    row = at[:count]
    first = _first_of(layout.block_id, row, count)[layout.block_id]
    last = _last_of(layout.block_id, row, count)[layout.block_id] + 1
    last = row + 1 if causal else last
    if window is not None:
        first, last = torch.maximum(first, row - window + 1), torch.minimum(last, row + window)
    block_low, block_high = torch.where(valid, first, 0), torch.where(valid, last, 0)
    parts = [t if rows is None else t[rows] for t in (context_low, context_high)]
    parts += [t if rows is None else t[rows] for t in (block_low, block_high)]
    narrow = [t.int().contiguous() for t in parts]
    return Spans(
        context=Run(low=narrow[0], high=narrow[1], keys=size),
        block=Run(low=narrow[2], high=narrow[3], keys=count),
    )


def _first_of(group: Tensor, at: Tensor, size: int) -> Tensor:
    """By group number, the smallest index of its members."""
    return at.new_full((size + 2,), size).scatter_reduce(0, group, at, "amin")


def _last_of(group: Tensor, at: Tensor, size: int) -> Tensor:
    return at.new_zeros(size + 2).scatter_reduce(0, group, at, "amax")


def _edges(run: Run, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each tile of rows: where any row sees from and to, where all rows do."""
    count = len(run.low)
    tiles = -(-count // rows)
    pad = tiles * rows - count
    low = torch.cat([run.low, run.low[-1:].expand(pad)]).view(tiles, rows)
    high = torch.cat([run.high, run.high[-1:].expand(pad)]).view(tiles, rows)
    sees = high > low
    start = torch.where(sees, low, run.keys).amin(1)
    end = torch.where(sees, high, 0).amax(1)
    start = torch.minimum(start, end)
    all_from = torch.where(sees.all(1), low.amax(1), end)
    return start, end, all_from, high.amin(1)


def _by_rows(run: Run, rows: int, keys: int) -> Tensor:
    start, end, all_from, all_to = _edges(run, rows)
    first, last = start // keys, (end + keys - 1) // keys
    whole = torch.minimum((all_from + keys - 1) // keys, last).maximum(first)
    until = torch.minimum(all_to // keys, last).maximum(whole)
    return torch.stack([first, whole, until, last], 1).int().contiguous()


def _by_keys(run: Run, rows: int, keys: int) -> Tensor:
    start, end, all_from, all_to = (edge[:, None] for edge in _edges(run, rows))  # [tiles,1]
    low = torch.arange(-(-run.keys // keys), device=run.low.device)[None] * keys
    any_row = (start < low + keys) & (end > low) & (end > start)
    all_rows = (all_from <= low) & (all_to >= low + keys)
    number = torch.arange(len(any_row), device=run.low.device)[:, None]
    beyond = len(any_row)
    first = torch.where(any_row, number, beyond).amin(0)
    last = torch.where(any_row, number + 1, 0).amax(0)
    first = torch.minimum(first, last)
    whole = torch.minimum(torch.where(all_rows, number, beyond).amin(0), last)
    unbroken = ((number < whole[None]) | all_rows).long().cumprod(0).sum(0)
    until = torch.minimum(unbroken.maximum(whole), last)
    return torch.stack([first, whole, until, last], 1).int().contiguous()
