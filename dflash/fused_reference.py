"""What the Triton kernels compute, in plain torch: the path of CPUs, and the kernels' yardstick.

Signatures are those of `dflash.kernels`. Gradients come from autograd here, so that a kernel's
derivative and the text it was written from cannot share a mistake.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.spans import Spans


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float() if x.dtype != torch.float64 else x
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, delta: Tensor | None = None, *, plus_one: bool = False
) -> tuple[Tensor, Tensor]:
    total = x if delta is None else x + delta
    if plus_one:
        return total, _normed(total.float(), 1.0 + weight.float(), eps).to(x.dtype)
    return total, _normed(total, weight, eps)


@torch.enable_grad()
def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = _normed(x, weight, eps)
    dx, dw = torch.autograd.grad(y, (x, weight), dy)
    return dx if residual is None else dx + residual, dw, y.detach()


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = _normed(x, weight, eps).float()
    return (y * functional.silu(gate.reshape(x.shape).float())).to(x.dtype)


def rotate_heads(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    y = _normed(x.unflatten(-1, (-1, len(weight))), weight, eps)
    low, high = y.chunk(2, dim=-1)
    return (y * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]).flatten(1)


@torch.enable_grad()
def rotate_heads_backward(
    dy: Tensor, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    dx, dw = torch.autograd.grad(rotate_heads(x, weight, cos, sin, eps), (x, weight), dy)
    return dx, dw


def rotate_part(
    x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float, *, plus_one: bool
) -> Tensor:
    y = rms_norm(x, weight, eps, plus_one=plus_one)[1].transpose(1, 2)
    turned, rest = y[..., : cos.shape[-1]], y[..., cos.shape[-1] :]
    low, high = turned.chunk(2, dim=-1)
    turned = turned * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]
    return torch.cat([turned, rest], -1)


def delta_rule(
    raw: Tensor, conv: Tensor, a_log: Tensor, dt_bias: Tensor, *,
    rows: int, key_heads: int, value_heads: int, key_width: int, value_width: int,
) -> Tensor:  # fmt: skip
    """Token by token: the definition, not the chunked form of it."""
    keys, values = key_heads * key_width, value_heads * value_width
    parts = [2 * keys + values, values, value_heads, value_heads]
    mixed, _, b, a = raw.view(rows, -1, raw.shape[-1])[..., : sum(parts)].split(parts, dim=-1)
    padded = functional.pad(mixed.transpose(1, 2), (conv.shape[-1] - 1, 0))
    weight = conv.reshape(conv.shape[0], 1, -1)
    mixed = functional.silu(functional.conv1d(padded, weight, groups=len(conv))).transpose(1, 2)
    q, k, v = (
        t.unflatten(-1, (-1, key_width)).float() for t in mixed.split([keys, keys, values], -1)
    )
    group = value_heads // key_heads
    q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(group, 2) for t in (q * key_width**-0.5, k))
    beta = b.sigmoid().float()
    keep = torch.exp(-a_log.float().exp() * functional.softplus(a.float() + dt_bias.float()))
    state = q.new_zeros(rows, value_heads, key_width, value_width)
    made = []
    for t in range(q.shape[1]):
        state = state * keep[:, t, :, None, None]
        known = (state * k[:, t, :, :, None]).sum(2)
        fresh = (v[:, t] - known) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * fresh[:, :, None]
        made.append((state * q[:, t, :, :, None]).sum(2))
    return torch.stack(made, 1).flatten(0, 1).to(raw.dtype)


def swiglu(both: Tensor) -> Tensor:
    gate, up = both.chunk(2, dim=-1)
    return functional.silu(gate) * up


@torch.enable_grad()
def swiglu_backward_(dh: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
    both = both.detach().requires_grad_()
    h = swiglu(both)
    return torch.autograd.grad(h, both, dh)[0], h.detach()


def gate_heads(x: Tensor, gate: Tensor) -> Tensor:
    return (x.transpose(1, 2) * torch.sigmoid(gate)).flatten(2).flatten(0, 1)


def _scores(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    q, k, v = (t.unflatten(-1, (-1, head_dim)).transpose(0, 1) for t in (q, k, v))
    group = len(q) // len(k)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = (q @ k.transpose(1, 2)).float() * head_dim**-0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    some = mask.any(-1)[None, :, None]
    weights = torch.where(some, torch.where(some, scores, 0.0).softmax(-1), 0.0)
    lse = torch.where(some[..., 0], scores.logsumexp(-1) / math.log(2), torch.inf)
    return (weights.to(v.dtype) @ v).transpose(0, 1).flatten(1), lse


def attend(
    q: Tensor, ck: Tensor, cv: Tensor, bk: Tensor, bv: Tensor, spans: Spans, head_dim: int
) -> tuple[Tensor, Tensor]:
    mask = torch.cat([spans.context.mask(), spans.block.mask()], 1)
    return _scores(q, torch.cat([ck, bk]), torch.cat([cv, bv]), mask, head_dim)


@torch.enable_grad()
def attend_backward(
    do: Tensor, q: Tensor, ck: Tensor, cv: Tensor, bk: Tensor, bv: Tensor,
    _out: Tensor, _lse: Tensor, spans: Spans, head_dim: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    inputs = [t.detach().requires_grad_() for t in (q, ck, cv, bk, bv)]
    out, _ = attend(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], spans, head_dim)
    return torch.autograd.grad(out, inputs, do)


def shaped(logits: Tensor, scale: float, cap: float) -> Tensor:
    """Logits as the engines compute them, in fp32."""
    logits = logits.float() * scale
    return cap * torch.tanh(logits / cap) if cap > 0 else logits


@torch.enable_grad()
def cross_entropy_(
    logits: Tensor, labels: Tensor, *, scale: float, cap: float, gradient: bool
) -> tuple[Tensor, Tensor]:
    raw = logits.detach().requires_grad_(gradient)
    made = shaped(raw, scale, cap)
    ce = functional.cross_entropy(made, labels, reduction="none")
    if gradient:
        logits.copy_(torch.autograd.grad(ce.sum(), raw)[0])
    own = made.gather(1, labels[:, None])
    before = torch.arange(made.shape[1], device=made.device)[None] < labels[:, None]
    beaten = (made > own) | ((made == own) & before)
    return ce.detach(), ~beaten.any(1)
