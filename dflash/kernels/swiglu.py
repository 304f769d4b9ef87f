"""silu(gate) * up, and its gradient written over its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1024


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
def _backward(dh, gate, up, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    g = tl.load(gate + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    d = tl.load(dh + row * width + at, mask=inside, other=0.0).to(tl.float32)
    kind = dh.dtype.element_ty
    s = tl.sigmoid(g)
    silu = g * s
    tl.store(dh + row * width + at, (silu * u).to(kind), mask=inside)
    tl.store(gate + row * stride + at, (d * u * (s + silu * (1.0 - s))).to(kind), mask=inside)
    tl.store(up + row * stride + at, (d * silu).to(kind), mask=inside)


def swiglu(both: Tensor) -> Tensor:
    """[n, gate|up] -> [n,I]."""
    rows, width = both.shape[0], both.shape[1] // 2
    h = torch.empty(rows, width, dtype=both.dtype, device=both.device)
    if rows:
        grid: Any = (rows, triton.cdiv(width, BLOCK))
        gate, up = both.chunk(2, dim=-1)
        _forward[grid](gate, up, h, width, both.stride(0), BLOCK=BLOCK, num_warps=4)
    return h


def swiglu_backward_(dh: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    """both [n, gate|up] -> (its gradient, h) in the memory of `both` and `dh`."""
    rows, width = dh.shape
    if rows:
        grid: Any = (rows, triton.cdiv(width, BLOCK))
        gate, up = both.chunk(2, dim=-1)
        _backward[grid](dh, gate, up, width, both.stride(0), BLOCK=BLOCK, num_warps=4)
    return both, dh
