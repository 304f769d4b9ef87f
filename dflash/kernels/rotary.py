"""Norm of each head and rotation by position, in one pass over queries or keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

PROGRAMS = 2112


@triton.jit
def _forward(
    x, weight, cos, sin, y, eps,
    HEADS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, PADDED)[:, None], tl.arange(0, HALF)[None]
    inside = head < HEADS
    place = row * HEADS * 2 * HALF + head * 2 * HALF + at
    kind = y.dtype.element_ty
    low = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(x + place + HALF, mask=inside, other=0.0).to(tl.float32)
    squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
    scale = (1 / tl.sqrt(squares / (2 * HALF) + eps))[:, None]
    low = (low * scale).to(kind).to(tl.float32) * tl.load(weight + at).to(tl.float32)
    high = (high * scale).to(kind).to(tl.float32) * tl.load(weight + HALF + at).to(tl.float32)
    c = tl.load(cos + row * 2 * HALF + at).to(tl.float32)
    s = tl.load(sin + row * 2 * HALF + at).to(tl.float32)
    tl.store(y + place, (low * c - high * s).to(kind), mask=inside)
    tl.store(y + place + HALF, (high * c + low * s).to(kind), mask=inside)


@triton.jit
def _backward(
    dy, x, weight, cos, sin, dx, dw, rows, eps,
    HEADS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr,
) -> None:  # fmt: skip
    head, at = tl.arange(0, PADDED)[:, None], tl.arange(0, HALF)[None]
    inside = head < HEADS
    kind = dx.dtype.element_ty
    w_low = tl.load(weight + at).to(tl.float32)
    w_high = tl.load(weight + HALF + at).to(tl.float32)
    dw_low = tl.zeros([1, HALF], dtype=tl.float32)
    dw_high = tl.zeros([1, HALF], dtype=tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        wide = tl.cast(row, tl.int64)
        place = wide * HEADS * 2 * HALF + head * 2 * HALF + at
        low = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(x + place + HALF, mask=inside, other=0.0).to(tl.float32)
        squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
        scale = (1 / tl.sqrt(squares / (2 * HALF) + eps))[:, None]
        low, high = low * scale, high * scale
        up_low = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        up_high = tl.load(dy + place + HALF, mask=inside, other=0.0).to(tl.float32)
        c = tl.load(cos + wide * 2 * HALF + at).to(tl.float32)
        s = tl.load(sin + wide * 2 * HALF + at).to(tl.float32)
        back_low, back_high = up_low * c + up_high * s, up_high * c - up_low * s
        dw_low += tl.sum(back_low * low, 0)[None]
        dw_high += tl.sum(back_high * high, 0)[None]
        back_low, back_high = back_low * w_low, back_high * w_high
        mean = (tl.sum(back_low * low, 1) + tl.sum(back_high * high, 1))[:, None] / (2 * HALF)
        tl.store(dx + place, (scale * (back_low - low * mean)).to(kind), mask=inside)
        tl.store(dx + place + HALF, (scale * (back_high - high * mean)).to(kind), mask=inside)
    out = dw + tl.program_id(0) * 2 * HALF + at
    tl.store(out, dw_low)
    tl.store(out + HALF, dw_high)


@triton.jit
def _part(
    x, weight, cos, sin, y, length, stride_token, stride_head, stride_row, eps,
    HEADS: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr, ROTATED: tl.constexpr,
    PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Only the first ROTATED features of a head turn; written as [rows, heads, tokens, D]."""
    token = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, PADDED)[:, None], tl.arange(0, D)[None]
    inside = head < HEADS
    half: tl.constexpr = ROTATED // 2
    place = x + token * stride_token + head * stride_head
    partner = tl.where(at < half, at + half, tl.where(at < ROTATED, at - half, at))
    own = tl.load(place + at, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(place + partner, mask=inside, other=0.0).to(tl.float32)
    kind = y.dtype.element_ty
    scale = (1 / tl.sqrt(tl.sum(own * own, 1) / D + eps))[:, None]
    w, w_other = tl.load(weight + at).to(tl.float32), tl.load(weight + partner).to(tl.float32)
    if PLUS_ONE:
        w, w_other = w + 1.0, w_other + 1.0
    own, other = (own * scale * w).to(kind).to(tl.float32), (other * scale * w_other).to(kind)
    turns = at < ROTATED
    c = tl.load(cos + token * ROTATED + at, mask=turns, other=1.0).to(tl.float32)
    s = tl.load(sin + token * ROTATED + at, mask=turns, other=0.0).to(tl.float32)
    made = own * c + tl.where(at < half, -other.to(tl.float32), other.to(tl.float32)) * s
    row, step = token // length, token % length
    out = y + row * stride_row + head * length * D + step * D + at
    tl.store(out, made.to(kind), mask=inside)


@triton.jit
def _gate(
    x, gate, y, length, stride_token, stride_head, stride_row,
    HEADS: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, PADDED)[:, None], tl.arange(0, D)[None]
    inside = head < HEADS
    row, step = token // length, token % length
    own = tl.load(x + row * stride_row + head * length * D + step * D + at, mask=inside, other=0.0)
    z = tl.load(gate + token * stride_token + head * stride_head + at, mask=inside, other=0.0)
    kind = y.dtype.element_ty
    open_ = tl.sigmoid(z.to(tl.float32)).to(kind).to(tl.float32)
    made = (own.to(tl.float32) * open_).to(kind)
    tl.store(y + (token * HEADS + head) * D + at, made, mask=inside)


def gate_heads(x: Tensor, gate: Tensor) -> Tensor:
    """x [R,h,S,d], gate [R,S,h,d] with any strides -> x * sigmoid(gate) as [R*S,h*d]."""
    rows, heads, length, width = x.shape
    x = x.contiguous()
    y = torch.empty(rows * length, heads * width, dtype=x.dtype, device=x.device)
    grid: Any = (rows * length,)
    _gate[grid](
        x, gate, y, length, gate.stride(1), gate.stride(2), heads * length * width,
        HEADS=heads, PADDED=triton.next_power_of_2(heads), D=width, num_warps=4,
    )  # fmt: skip
    return y


def rotate_part(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, *, plus_one: bool
) -> Tensor:
    """x [R,S,h,d] with any strides, cos and sin [R,S,rotated] -> [R,h,S,d] normed and rotated."""
    rows, length, heads, width = x.shape
    y = torch.empty(rows, heads, length, width, dtype=x.dtype, device=x.device)
    grid: Any = (rows * length,)
    _part[grid](
        x, weight, cos, sin, y, length, x.stride(1), x.stride(2), heads * length * width, eps,
        HEADS=heads, PADDED=triton.next_power_of_2(heads), D=width, ROTATED=cos.shape[-1],
        PLUS_ONE=plus_one, num_warps=4,
    )  # fmt: skip
    return y


def rotate_heads(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """x [n,h*d] -> normed by head and rotated [n,h*d]."""
    width = len(weight)
    heads = x.shape[1] // width
    y = torch.empty_like(x)
    if len(x):
        grid: Any = (len(x),)
        _forward[grid](
            x, weight, cos, sin, y, eps,
            HEADS=heads, PADDED=triton.next_power_of_2(heads), HALF=width // 2, num_warps=4,
        )  # fmt: skip
    return y


def rotate_heads_backward(
    dy: Tensor, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(dx, dweight) from x before norm and rotation."""
    width = len(weight)
    heads = x.shape[1] // width
    dx, programs = torch.empty_like(x), min(len(x), PROGRAMS)
    dw = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    if len(x):
        grid: Any = (programs,)
        _backward[grid](
            dy, x, weight, cos, sin, dx, dw, len(x), eps,
            HEADS=heads, PADDED=triton.next_power_of_2(heads), HALF=width // 2, num_warps=4,
        )  # fmt: skip
    return dx, dw.sum(0).to(weight.dtype)
