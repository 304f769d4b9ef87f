"""RMS norm of rows, with what stands next to it: a residual added before, a gate after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

BACK = {"programs": 528, "num_warps": 4}
"""Programs of a backward pass: each adds up the weight's gradient over many rows."""


@triton.jit
def _forward(
    x, delta, weight, total, y, width, eps,
    HAS_DELTA: tl.constexpr, PLUS_ONE: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    wide = tl.load(x + row * width + at, mask=inside, other=0.0)
    if HAS_DELTA:
        wide = wide.to(tl.float32) + tl.load(delta + row * width + at, mask=inside, other=0.0)
        wide = wide.to(total.dtype.element_ty)
        tl.store(total + row * width + at, wide, mask=inside)
    wide = wide.to(tl.float32)
    wide = wide * (1 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps))
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wide = wide * (1.0 + w) if PLUS_ONE else wide.to(y.dtype.element_ty).to(tl.float32) * w
    tl.store(y + row * width + at, wide.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy, x, weight, residual, dx, y, dw, rows, width, eps,
    HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    at = tl.arange(0, BLOCK)
    inside = at < width
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    collected = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.cast(row, tl.int64) * width
        wide = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(dy + start + at, mask=inside, other=0.0).to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
        unit = wide * scale
        rounded = unit.to(y.dtype.element_ty).to(tl.float32)
        tl.store(y + start + at, (rounded * w).to(y.dtype.element_ty), mask=inside)
        collected += up * rounded
        up = up * w
        grad = scale * (up - unit * (tl.sum(up * unit, 0) / width))
        if HAS_RESIDUAL:
            grad += tl.load(residual + start + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + start + at, grad.to(dx.dtype.element_ty), mask=inside)
    tl.store(dw + tl.program_id(0) * width + at, collected, mask=inside)


@triton.jit
def _gated(x, gate, weight, y, width, stride, eps, BLOCK: tl.constexpr, ROWS: tl.constexpr,
           HEADS: tl.constexpr) -> None:  # fmt: skip
    token, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * ROWS
    head, at = first + tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None]
    inside = (head < HEADS) & (at < width)
    place = (token * HEADS + head) * width + at
    wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    wide = wide * (1 / tl.sqrt(tl.sum(wide * wide, 1) / width + eps))[:, None]
    w = tl.load(weight + at, mask=at < width, other=0.0).to(tl.float32)
    wide = wide.to(y.dtype.element_ty).to(tl.float32) * w
    wide = wide.to(y.dtype.element_ty).to(tl.float32)
    z = tl.load(gate + token * stride + head * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, (wide * z * tl.sigmoid(z)).to(y.dtype.element_ty), mask=inside)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, delta: Tensor | None = None, *, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    """(x + delta, its norm); `plus_one`: weights are stored as their difference from one."""
    rows, width = x.shape
    total = x if delta is None else torch.empty_like(x)
    y = torch.empty_like(x)
    if rows:
        grid: Any = (rows,)
        _forward[grid](
            x, delta, weight, total, y, width, eps,
            HAS_DELTA=delta is not None, PLUS_ONE=plus_one,
            BLOCK=triton.next_power_of_2(width), num_warps=8,
        )  # fmt: skip
    return total, y


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dweight, y): y is made again, so that forward need not keep it."""
    rows, width = x.shape
    dx, y = torch.empty_like(x), torch.empty_like(x)
    programs = min(rows, BACK["programs"])
    dw = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    if rows:
        grid: Any = (programs,)
        _backward[grid](
            dy, x, weight, residual, dx, y, dw, rows, width, eps,
            HAS_RESIDUAL=residual is not None, BLOCK=triton.next_power_of_2(width),
            num_warps=BACK["num_warps"],
        )  # fmt: skip
    return dx, dw.sum(0).to(weight.dtype), y


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """norm(x) * silu(gate): x [n,h,d] contiguous, gate [n,h*d] with any row stride."""
    tokens, heads, width = x.shape
    y = torch.empty_like(x)
    rows = 16
    grid: Any = (tokens, triton.cdiv(heads, rows))
    _gated[grid](
        x, gate, weight, y, width, gate.stride(0), eps,
        BLOCK=triton.next_power_of_2(width), ROWS=rows, HEADS=heads, num_warps=4,
    )  # fmt: skip
    return y
