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
LOWEST = tl.constexpr(-1e30)


@triton.jit
def _shaped(raw, scale, cap, SCALED: tl.constexpr, CAPPED: tl.constexpr):
    x = raw.to(tl.float32)
    if SCALED:
        x = x * scale
    if CAPPED:
        x = cap * (1.0 - 2.0 / (tl.exp(2.0 * x / cap) + 1.0))
    return x


@triton.jit
def _read(logits, at, width, scale, cap, MASKED: tl.constexpr, SCALED: tl.constexpr,
          CAPPED: tl.constexpr):  # fmt: skip
    if MASKED:
        x = tl.load(logits + at, mask=at < width, other=0.0)
        x = tl.where(at < width, _shaped(x, scale, cap, SCALED, CAPPED), LOWEST)
    else:
        x = _shaped(tl.load(logits + at), scale, cap, SCALED, CAPPED)
    return x


@triton.jit
def _add(top, total, x):
    """One tile into the running maximum and sum of each column."""
    higher = tl.maximum(top, tl.max(x, 0))
    total = total * tl.exp2((top - higher) * LOG2E)
    total += tl.sum(tl.exp2(x * LOG2E - (higher * LOG2E)[None]), 0)
    return higher, total


@triton.jit
def _write(logits, at, width, x, log_sum, label, scale, cap, MASKED: tl.constexpr,
           LABEL: tl.constexpr, SCALED: tl.constexpr, CAPPED: tl.constexpr):  # fmt: skip
    grad = tl.exp2(x * LOG2E - log_sum * LOG2E)
    if LABEL:
        grad = grad - (at == label).to(tl.float32)
    if CAPPED:
        grad = grad * (1.0 - (x / cap) * (x / cap))
    if SCALED:
        grad = grad * scale
    grad = grad.to(logits.dtype.element_ty)
    if MASKED:
        tl.store(logits + at, grad, mask=at < width)
    else:
        tl.store(logits + at, grad)


@triton.jit
def _cross_entropy(
    logits, labels, ce, right, width, scale, cap, SCALED: tl.constexpr,
    CAPPED: tl.constexpr, GRADIENT: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    label = tl.load(labels + row).to(tl.int32)
    own = _shaped(tl.load(logits + label), scale, cap, SCALED, CAPPED)
    size: tl.constexpr = DEEP * WIDE
    offsets = tl.arange(0, DEEP)[:, None] * WIDE + tl.arange(0, WIDE)[None]
    top = tl.full([WIDE], LOWEST, dtype=tl.float32)
    total = tl.zeros([WIDE], dtype=tl.float32)
    # The label's tile and the last one need masks; the many others do as little as possible.
    mine, whole = label // size, width // size
    for tile in range(tl.minimum(mine, whole)):
        x = _read(logits, tile * size + offsets, width, scale, cap, False, SCALED, CAPPED)
        top, total = _add(top, total, x)
    at = mine * size + offsets
    x = _read(logits, at, width, scale, cap, True, SCALED, CAPPED)
    before = tl.max(tl.maximum(top, tl.max(tl.where(at < label, x, LOWEST), 0)), 0)
    top, total = _add(top, total, x)
    for tile in range(mine + 1, whole):
        x = _read(logits, tile * size + offsets, width, scale, cap, False, SCALED, CAPPED)
        top, total = _add(top, total, x)
    rest = whole * size + offsets
    if (mine != whole) & (whole * size < width):
        x = _read(logits, rest, width, scale, cap, True, SCALED, CAPPED)
        top, total = _add(top, total, x)
    highest = tl.max(top, 0)
    log_sum = highest + tl.log(tl.sum(total * tl.exp2((top - highest) * LOG2E), 0))
    tl.store(ce + row, log_sum - own)
    # The first of equal logits is the argmax.
    tl.store(right + row, ((highest <= own) & (before < own)).to(tl.int8))
    if GRADIENT:
        # Backwards: the end of the row is still in the cache.
        if (mine != whole) & (whole * size < width):
            x = _read(logits, rest, width, scale, cap, True, SCALED, CAPPED)
            _write(logits, rest, width, x, log_sum, label, scale, cap, True, False, SCALED, CAPPED)
        for back in range(mine + 1, whole):
            place = (whole + mine - back) * size + offsets
            x = _read(logits, place, width, scale, cap, False, SCALED, CAPPED)
            _write(logits, place, width, x, log_sum, label, scale, cap, False, False, SCALED,
                   CAPPED)  # fmt: skip
        x = _read(logits, at, width, scale, cap, True, SCALED, CAPPED)
        _write(logits, at, width, x, log_sum, label, scale, cap, True, True, SCALED, CAPPED)
        for back in range(tl.minimum(mine, whole)):
            place = (mine - 1 - back) * size + offsets
            x = _read(logits, place, width, scale, cap, False, SCALED, CAPPED)
            _write(logits, place, width, x, log_sum, label, scale, cap, False, False, SCALED,
                   CAPPED)  # fmt: skip


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
            SCALED=scale != 1.0, CAPPED=cap > 0, GRADIENT=gradient, **TILE,
        )  # fmt: skip
    return ce, right.bool()
