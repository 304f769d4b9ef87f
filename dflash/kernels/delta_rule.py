"""Forward of a gated delta-rule layer: convolution, chunks of 64 tokens, and the recurrence.

Within a chunk the rule is a triangular system (the WY form); from chunk to chunk a state of
[key width, value width] for each head is carried. Three kernels: `prepare` convolves and norms,
`solve` inverts each chunk's system, `recur` walks the chunks of one head and writes the output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = tl.constexpr(64)
SOLVE = {"BLOCK": 4, "num_warps": 4, "num_stages": 1}
"""BLOCK: rows of a block on the diagonal; with 16 a layer of a 27B model took 1.01 ms, not 0.83."""
RECUR = {"BV": 64, "num_warps": 4, "num_stages": 2}
"""BV: columns of a head's state in one program, so that two programs share a head of 128."""


@triton.jit
def _prepare(
    x, weight, out, length, stride, channels, eps,
    TAPS: tl.constexpr, D: tl.constexpr, T: tl.constexpr, NORMED: tl.constexpr,
) -> None:  # fmt: skip
    tiles = tl.cdiv(length, T)
    row, tile, head = tl.program_id(0) // tiles, tl.program_id(0) % tiles, tl.program_id(1)
    at = tile * T + tl.arange(0, T)
    channel = head * D + tl.arange(0, D)
    total = tl.zeros([T, D], dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        when = at - (TAPS - 1) + tap
        place = (row * length + when).to(tl.int64)[:, None] * stride + channel[None]
        seen = (when >= 0) & (when < length)
        part = tl.load(x + place, mask=seen[:, None], other=0.0).to(tl.float32)
        total += part * tl.load(weight + channel * TAPS + tap).to(tl.float32)[None]
    kind = out.dtype.element_ty
    total = total.to(kind).to(tl.float32)
    total = (total * tl.sigmoid(total)).to(kind).to(tl.float32)
    if head < NORMED:  # queries and keys
        total = total * (1 / tl.sqrt(tl.sum(total * total, 1) + eps))[:, None]
    place = (row * length + at).to(tl.int64)[:, None] * channels + channel[None]
    tl.store(out + place, total.to(kind), mask=(at < length)[:, None])


@triton.jit
def _inverse(system, number, C: tl.constexpr, BLOCK: tl.constexpr):
    """(1 + system)^-1: diagonal blocks row by row, then pairs of blocks merged by two products.

    A pair is [[A, 0], [S, B]], its inverse [[A', 0], [-B' S A', B']]: exact, and nothing grows.
    Powers of the whole system would overflow.
    """
    parts: tl.constexpr = C // BLOCK
    blocks = tl.reshape(system, [parts, BLOCK, parts, BLOCK])
    p = tl.arange(0, parts)
    same = p[:, None, None, None] == p[None, None, :, None]
    diagonal = tl.sum(tl.where(same, blocks, 0.0), 2)  # [parts,BLOCK,BLOCK]
    n = tl.arange(0, BLOCK)
    inverse = tl.where((n[:, None] == n[None])[None], 1.0, tl.zeros_like(diagonal))
    for i in range(1, BLOCK):
        mine = (n == i)[None, :, None]
        line = tl.sum(tl.where(mine, diagonal, 0.0), 1)  # [parts,BLOCK]
        made = tl.sum(line[:, :, None] * inverse, 1)
        inverse = tl.where(mine, inverse - made[:, None, :], inverse)
    found = tl.reshape(tl.where(same, inverse[:, :, None, :], 0.0), [C, C])
    for size in tl.static_range(BLOCK, C, BLOCK):
        if (size & (size - 1)) == 0:  # doubled each time
            lower, upper = number[:, None] // size, number[None] // size
            beside = tl.where((lower == upper + 1) & (lower % 2 == 1), system, 0.0)
            found -= tl.dot(tl.dot(found, beside), found)
    return found


@triton.jit
def _solve(
    mixed, raw, a_log, dt_bias, u, w, decay, length, channels, stride, b_at, a_at,
    HEADS: tl.constexpr, SHARED: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    C: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    chunks = tl.cdiv(length, C)
    row, chunk, head = tl.program_id(0) // chunks, tl.program_id(0) % chunks, tl.program_id(1)
    group: tl.constexpr = HEADS // SHARED
    at = chunk * C + tl.arange(0, C)
    inside = at < length
    token = (row * length + at).to(tl.int64)
    b = tl.load(raw + token * stride + b_at + head, mask=inside, other=0.0).to(tl.float32)
    beta = tl.sigmoid(b).to(raw.dtype.element_ty).to(tl.float32)
    beta = tl.where(inside, beta, 0.0)
    a = tl.load(raw + token * stride + a_at + head, mask=inside, other=0.0).to(tl.float32)
    a += tl.load(dt_bias + head).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head).to(tl.float32))
    soft = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
    g = tl.cumsum(tl.where(inside, -rate * soft, 0.0), 0)
    tl.store(decay + token * HEADS + head, g, mask=inside)
    key = token[:, None] * channels + (SHARED + head // group) * DK + tl.arange(0, DK)[None]
    k = tl.load(mixed + key, mask=inside[:, None], other=0.0)
    number = tl.arange(0, C)
    below = number[:, None] > number[None]
    fall = tl.exp(tl.where(below, g[:, None] - g[None], 0.0))
    system = tl.where(below, tl.dot(k, tl.trans(k)) * fall * beta[:, None], 0.0)
    solved = _inverse(system, number, C, BLOCK)
    kind = u.dtype.element_ty
    solved = solved.to(kind)
    value = token[:, None] * channels + 2 * SHARED * DK + head * DV + tl.arange(0, DV)[None]
    v = tl.load(mixed + value, mask=inside[:, None], other=0.0).to(tl.float32)
    out = token[:, None] * HEADS * DV + head * DV + tl.arange(0, DV)[None]
    tl.store(u + out, tl.dot(solved, (v * beta[:, None]).to(kind)).to(kind), mask=inside[:, None])
    out = token[:, None] * HEADS * DK + head * DK + tl.arange(0, DK)[None]
    scaled = (k.to(tl.float32) * (beta * tl.exp(g))[:, None]).to(kind)
    tl.store(w + out, tl.dot(solved, scaled).to(kind), mask=inside[:, None])


@triton.jit
def _recur(
    mixed, u, w, decay, out, length, channels, scale,
    HEADS: tl.constexpr, SHARED: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    C: tl.constexpr, BV: tl.constexpr,
) -> None:  # fmt: skip
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = HEADS // SHARED
    kind = out.dtype.element_ty
    number = tl.arange(0, C)
    seen = number[:, None] >= number[None]
    state = tl.zeros([DK, BV], dtype=tl.float32)
    wide, values = tl.arange(0, DK)[None], part * BV + tl.arange(0, BV)[None]
    for chunk in range(tl.cdiv(length, C)):
        at = chunk * C + number
        inside = at < length
        token = (row * length + at).to(tl.int64)
        shared = token[:, None] * channels + (head // group) * DK + wide
        q = tl.load(mixed + shared, mask=inside[:, None], other=0.0)
        k = tl.load(mixed + shared + SHARED * DK, mask=inside[:, None], other=0.0)
        place = token[:, None] * HEADS * DV + head * DV + values
        fresh = tl.load(u + place, mask=inside[:, None], other=0.0).to(tl.float32)
        lines = token[:, None] * HEADS * DK + head * DK + wide
        back = tl.load(w + lines, mask=inside[:, None], other=0.0)
        g = tl.load(decay + token * HEADS + head, mask=inside, other=0.0)
        last = tl.minimum(chunk * C + C, length) - 1
        end = tl.load(decay + (row * length + last).to(tl.int64) * HEADS + head)
        narrow = state.to(kind)
        fresh = (fresh - tl.dot(back, narrow)).to(kind)
        fall = tl.exp(tl.where(seen, g[:, None] - g[None], 0.0))
        scores = tl.where(seen, tl.dot(q, tl.trans(k)) * fall, 0.0)
        made = tl.dot(q, narrow) * tl.exp(g)[:, None]
        made = tl.dot(scores.to(kind), fresh, made)
        tl.store(out + place, (made * scale).to(kind), mask=inside[:, None])
        left = tl.where(inside, tl.exp(end - g), 0.0)
        faded = (k.to(tl.float32) * left[:, None]).to(kind)
        state = tl.dot(tl.trans(faded), fresh, state * tl.exp(end))


def delta_rule(
    raw: Tensor, conv: Tensor, a_log: Tensor, dt_bias: Tensor, *,
    rows: int, key_heads: int, value_heads: int, key_width: int, value_width: int,
) -> Tensor:  # fmt: skip
    """raw [rows*S, q|k|v|gate|b|a] as projected -> [rows*S, value heads, value width].

    Rows are documents; a token never sees another row. Padding on the right changes nothing.
    """
    tokens = len(raw)
    length = tokens // rows
    channels = 2 * key_heads * key_width + value_heads * value_width
    b_at = channels + value_heads * value_width
    assert key_width == value_width, "convolved by heads of one width"
    mixed = torch.empty(tokens, channels, dtype=raw.dtype, device=raw.device)
    step = 64
    grid: Any = (rows * triton.cdiv(length, step), channels // key_width)
    _prepare[grid](
        raw, conv, mixed, length, raw.stride(0), channels, 1e-6,
        TAPS=conv.shape[-1], D=key_width, T=step, NORMED=2 * key_heads, num_warps=4,
    )  # fmt: skip
    u = torch.empty(tokens, value_heads, value_width, dtype=raw.dtype, device=raw.device)
    w = torch.empty(tokens, value_heads, key_width, dtype=raw.dtype, device=raw.device)
    decay = torch.empty(tokens, value_heads, dtype=torch.float32, device=raw.device)
    chunk: int = CHUNK.value
    grid = (rows * triton.cdiv(length, chunk), value_heads)
    sizes = {"HEADS": value_heads, "SHARED": key_heads, "DK": key_width, "DV": value_width}
    _solve[grid](
        mixed, raw, a_log, dt_bias, u, w, decay, length, channels, raw.stride(0),
        b_at, b_at + value_heads, C=chunk, **SOLVE, **sizes,
    )  # fmt: skip
    out = torch.empty_like(u)
    tile = {**RECUR, "BV": min(RECUR["BV"], value_width)}
    grid = (rows, value_heads, value_width // tile["BV"])
    _recur[grid](
        mixed, u, w, decay, out, length, channels, key_width**-0.5,
        C=chunk, **tile, **sizes,
    )  # fmt: skip
    return out
