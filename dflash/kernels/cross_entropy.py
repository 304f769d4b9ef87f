"""Cross entropy of a chunk of logits, and its gradient written over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

TILE = {"DEEP": 4, "WIDE": 2048, "num_warps": 8}
"""With 8 warps a thread holds whole columns of a [DEEP, WIDE] tile: no reduction inside the loop
leaves the thread."""
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _shaped(raw, scale, cap, CAPPED: tl.constexpr):
    x = raw.to(tl.float32) * scale
    if CAPPED:
        x = cap * (1.0 - 2.0 / (tl.exp(2.0 * x / cap) + 1.0))
    return x


@triton.jit
def _cross_entropy(
    logits, labels, ce, right, width, scale, cap,
    CAPPED: tl.constexpr, GRADIENT: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    label = tl.load(labels + row)
    own = _shaped(tl.load(logits + label), scale, cap, CAPPED)
    offsets = tl.arange(0, DEEP)[:, None] * WIDE + tl.arange(0, WIDE)[None]
    top = tl.zeros([WIDE], dtype=tl.float32) + own
    total = tl.zeros([WIDE], dtype=tl.float32)
    beaten = tl.zeros([WIDE], dtype=tl.int32)
    for start in range(0, width, DEEP * WIDE):
        at = start + offsets
        raw = tl.load(logits + at, mask=at < width, other=float("-inf"))
        x = tl.where(at < width, _shaped(raw, scale, cap, CAPPED), float("-inf"))
        # The first of equal logits is the argmax.
        beaten += tl.sum(((x > own) | ((x == own) & (at < label))).to(tl.int32), 0)
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp2((top - higher) * LOG2E)
        total += tl.sum(tl.exp2((x - higher[None]) * LOG2E), 0)
        top = higher
    highest = tl.max(top, 0)
    log_sum = highest + tl.log(tl.sum(total * tl.exp2((top - highest) * LOG2E), 0))
    tl.store(ce + row, log_sum - own)
    tl.store(right + row, (tl.sum(beaten, 0) == 0).to(tl.int8))
    if GRADIENT:
        tiles = tl.cdiv(width, DEEP * WIDE)
        for tile in range(tiles):
            # Backwards: the end of the row is still in the cache.
            at = (tiles - 1 - tile) * DEEP * WIDE + offsets
            raw = tl.load(logits + at, mask=at < width, other=float("-inf"))
            x = _shaped(raw, scale, cap, CAPPED)
            grad = tl.exp2((x - log_sum) * LOG2E) - (at == label).to(tl.float32)
            if CAPPED:
                grad = grad * (1.0 - (x / cap) * (x / cap))
            grad = grad * scale
            tl.store(logits + at, grad.to(logits.dtype.element_ty), mask=at < width)


def cross_entropy_(
    logits: Tensor, labels: Tensor, *, scale: float, cap: float, gradient: bool
) -> tuple[Tensor, Tensor]:
    """(cross entropy, whether the argmax is the label) by row; logits become their gradient."""
    rows, width = logits.shape
    ce = torch.empty(rows, dtype=torch.float32, device=logits.device)
    right = torch.empty(rows, dtype=torch.int8, device=logits.device)
    if rows:
        grid: Any = (rows,)
        _cross_entropy[grid](
            logits, labels, ce, right, width, scale, cap,
            CAPPED=cap > 0, GRADIENT=gradient, **TILE,
        )  # fmt: skip
    return ce, right.bool()
