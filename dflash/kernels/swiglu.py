"""silu(gate) * up, and its gradient written over its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 2048


@triton.jit
def _forward(gate, up, h, width, stride, BLOCK: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    g = tl.load(gate + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    kind = h.dtype.element_ty
    product = (g * tl.sigmoid(g)).to(kind).to(tl.float32) * u
    tl.store(h + row * width + at, product.to(kind), mask=inside)


@triton.jit
def _backward(dh, gate, up, size, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(dh + at, mask=inside, other=0.0).to(tl.float32)
    kind = dh.dtype.element_ty
    s = tl.sigmoid(g)
    silu = g * s
    tl.store(dh + at, (silu * u).to(kind), mask=inside)
    tl.store(gate + at, (d * u * (s + silu * (1.0 - s))).to(kind), mask=inside)
    tl.store(up + at, (d * silu).to(kind), mask=inside)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Both [n,I]; they may be two halves of one wider tensor."""
    rows, width = gate.shape
    h = torch.empty(rows, width, dtype=gate.dtype, device=gate.device)
    if rows:
        grid: Any = (rows, triton.cdiv(width, BLOCK))
        _forward[grid](gate, up, h, width, gate.stride(0), BLOCK=BLOCK, num_warps=8)
    return h


def swiglu_backward_(dh: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(dgate, dup, h) in the memory of gate, up and dh."""
    size = dh.numel()
    if size:
        grid: Any = (triton.cdiv(size, BLOCK),)
        _backward[grid](dh, gate, up, size, BLOCK=BLOCK, num_warps=8)
    return gate, up, dh
