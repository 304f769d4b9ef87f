"""Cross entropy of a chunk of logits, and its gradient written over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 8192


@triton.jit
def _shaped(raw, scale, cap, CAPPED: tl.constexpr):
    x = raw.to(tl.float32) * scale
    if CAPPED:
        x = cap * (1.0 - 2.0 / (tl.exp(2.0 * x / cap) + 1.0))
    return x


@triton.jit
def _cross_entropy(
    logits, labels, ce, right, width, scale, cap,
    CAPPED: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * width
    label = tl.load(labels + row)
    own_raw = tl.load(logits + label)
    own = _shaped(own_raw, scale, cap, CAPPED)
    top = own
    total = 0.0
    beaten = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        raw = tl.load(logits + at, mask=at < width, other=float("-inf"))
        x = _shaped(raw, scale, cap, CAPPED)
        x = tl.where(at < width, x, float("-inf"))
        # The first of equal logits is the argmax.
        beaten += ((x > own) | ((x == own) & (at < label))).to(tl.int32)
        higher = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
        top = higher
    log_sum = top + tl.log(total)
    tl.store(ce + row, log_sum - own)
    tl.store(right + row, (tl.sum(beaten, 0) == 0).to(tl.int8))
    if GRADIENT:
        for start in range(0, width, BLOCK):
            at = start + tl.arange(0, BLOCK)
            raw = tl.load(logits + at, mask=at < width, other=float("-inf"))
            x = _shaped(raw, scale, cap, CAPPED)
            grad = tl.exp(x - log_sum) - (at == label).to(tl.float32)
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
            CAPPED=cap > 0, GRADIENT=gradient, BLOCK=BLOCK, num_warps=16,
        )  # fmt: skip
    return ce, right.bool()
