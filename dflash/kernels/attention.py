"""Attention of block rows over the runs of context and block rows that each of them sees.

Scores are kept in base 2. Context and block keys stay in two tensors: nothing is copied together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.spans import Spans

FORWARD = {"rows": 64, "keys": 64, "num_warps": 4, "num_stages": 3}
QUERIES = {"rows": 64, "keys": 64, "num_warps": 4, "num_stages": 2}
KEYS = {"rows": 64, "keys": 64, "num_warps": 4, "num_stages": 2}
LOG2E = 1 / math.log(2)


@triton.jit
def _look(acc, total, top, q, k, v, stride, first, last, low, high, size, scale,
          MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Key tiles `first` to `last` for one tile of queries."""
    at = tl.arange(0, D)[None]
    for tile in range(first, last):
        key = tile * N + tl.arange(0, N)
        place = key.to(tl.int64)[:, None] * stride + at
        if MASKED:
            keys = tl.load(k + place, mask=(key < size)[:, None], other=0.0)
            values = tl.load(v + place, mask=(key < size)[:, None], other=0.0)
        else:
            keys = tl.load(k + place)
            values = tl.load(v + place)
        s = tl.dot(q, tl.trans(keys)) * scale
        if MASKED:
            seen = (key[None] >= low[:, None]) & (key[None] < high[:, None])
            s = tl.where(seen, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        shift = higher
        if MASKED:
            shift = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - shift[:, None])
        fix = tl.exp2(top - shift)
        total = total * fix + tl.sum(p, 1)
        acc = tl.dot(p.to(values.dtype), values, acc * fix[:, None])
        top = higher
    return acc, total, top


@triton.jit
def _forward(
    q, ck, cv, bk, bv, out, lse, c_low, c_high, b_low, b_high, c_table, b_table,
    rows, c_size, b_size, scale, stride_q, stride_k,
    GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
) -> None:  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tile * M + tl.arange(0, M)
    real = row < rows
    place = row.to(tl.int64)[:, None] * stride_q + head * D + tl.arange(0, D)[None]
    query = tl.load(q + place, mask=real[:, None], other=0.0)
    acc = tl.zeros([M, D], dtype=tl.float32)
    total = tl.zeros([M], dtype=tl.float32)
    top = tl.full([M], float("-inf"), dtype=tl.float32)
    shared = (head // GROUP) * D
    low = tl.load(c_low + row, mask=real, other=0)
    high = tl.load(c_high + row, mask=real, other=0)
    first, whole = tl.load(c_table + tile * 4), tl.load(c_table + tile * 4 + 1)
    until, last = tl.load(c_table + tile * 4 + 2), tl.load(c_table + tile * 4 + 3)
    acc, total, top = _look(acc, total, top, query, ck + shared, cv + shared, stride_k,
                            first, whole, low, high, c_size, scale, True, N, D)  # fmt: skip
    acc, total, top = _look(acc, total, top, query, ck + shared, cv + shared, stride_k,
                            whole, until, low, high, c_size, scale, False, N, D)  # fmt: skip
    acc, total, top = _look(acc, total, top, query, ck + shared, cv + shared, stride_k,
                            until, last, low, high, c_size, scale, True, N, D)  # fmt: skip
    low = tl.load(b_low + row, mask=real, other=0)
    high = tl.load(b_high + row, mask=real, other=0)
    first, last = tl.load(b_table + tile * 4), tl.load(b_table + tile * 4 + 3)
    acc, total, top = _look(acc, total, top, query, bk + shared, bv + shared, stride_k,
                            first, last, low, high, b_size, scale, True, N, D)  # fmt: skip
    some = total > 0
    acc = acc / tl.where(some, total, 1.0)[:, None]
    tl.store(out + place, acc.to(out.dtype.element_ty), mask=real[:, None])
    length = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), float("inf"))
    tl.store(lse + head.to(tl.int64) * rows + row, length, mask=real)


@triton.jit
def _look_back(dq, q, do, lse, delta, k, v, stride, first, last, low, high, size, scale,
               MASKED: tl.constexpr, N: tl.constexpr, D: tl.constexpr):  # fmt: skip
    at = tl.arange(0, D)[None]
    for tile in range(first, last):
        key = tile * N + tl.arange(0, N)
        place = key.to(tl.int64)[:, None] * stride + at
        if MASKED:
            keys = tl.load(k + place, mask=(key < size)[:, None], other=0.0)
            values = tl.load(v + place, mask=(key < size)[:, None], other=0.0)
        else:
            keys = tl.load(k + place)
            values = tl.load(v + place)
        s = tl.dot(q, tl.trans(keys)) * scale
        if MASKED:
            seen = (key[None] >= low[:, None]) & (key[None] < high[:, None])
            s = tl.where(seen, s, float("-inf"))
        p = tl.exp2(s - lse[:, None])
        dp = tl.dot(do, tl.trans(values))
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(keys.dtype), keys, dq)
    return dq


@triton.jit
def _queries(
    q, ck, cv, bk, bv, out, do, lse, delta, dq, c_low, c_high, b_low, b_high, c_table, b_table,
    rows, c_size, b_size, scale, factor, stride_q, stride_k,
    GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
) -> None:  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tile * M + tl.arange(0, M)
    real = row < rows
    place = row.to(tl.int64)[:, None] * stride_q + head * D + tl.arange(0, D)[None]
    query = tl.load(q + place, mask=real[:, None], other=0.0)
    up = tl.load(do + place, mask=real[:, None], other=0.0)
    made = tl.load(out + place, mask=real[:, None], other=0.0)
    inner = tl.sum(up.to(tl.float32) * made.to(tl.float32), 1)
    tl.store(delta + head.to(tl.int64) * rows + row, inner, mask=real)
    length = tl.load(lse + head.to(tl.int64) * rows + row, mask=real, other=float("inf"))
    acc = tl.zeros([M, D], dtype=tl.float32)
    shared = (head // GROUP) * D
    low = tl.load(c_low + row, mask=real, other=0)
    high = tl.load(c_high + row, mask=real, other=0)
    first, whole = tl.load(c_table + tile * 4), tl.load(c_table + tile * 4 + 1)
    until, last = tl.load(c_table + tile * 4 + 2), tl.load(c_table + tile * 4 + 3)
    acc = _look_back(acc, query, up, length, inner, ck + shared, cv + shared, stride_k,
                     first, whole, low, high, c_size, scale, True, N, D)  # fmt: skip
    acc = _look_back(acc, query, up, length, inner, ck + shared, cv + shared, stride_k,
                     whole, until, low, high, c_size, scale, False, N, D)  # fmt: skip
    acc = _look_back(acc, query, up, length, inner, ck + shared, cv + shared, stride_k,
                     until, last, low, high, c_size, scale, True, N, D)  # fmt: skip
    low = tl.load(b_low + row, mask=real, other=0)
    high = tl.load(b_high + row, mask=real, other=0)
    first, last = tl.load(b_table + tile * 4), tl.load(b_table + tile * 4 + 3)
    acc = _look_back(acc, query, up, length, inner, bk + shared, bv + shared, stride_k,
                     first, last, low, high, b_size, scale, True, N, D)  # fmt: skip
    tl.store(dq + place, (acc * factor).to(dq.dtype.element_ty), mask=real[:, None])


@triton.jit
def _gather(dk, dv, k, v, q, do, lse, delta, low, high, key, first, last, rows, scale, stride,
            MASKED: tl.constexpr, M: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Row tiles `first` to `last` for one tile of keys; scores are transposed."""
    at = tl.arange(0, D)[None]
    for tile in range(first, last):
        row = tile * M + tl.arange(0, M)
        real = row < rows
        place = row.to(tl.int64)[:, None] * stride + at
        query = tl.load(q + place, mask=real[:, None], other=0.0)
        up = tl.load(do + place, mask=real[:, None], other=0.0)
        length = tl.load(lse + row, mask=real, other=float("inf"))
        inner = tl.load(delta + row, mask=real, other=0.0)
        s = tl.dot(k, tl.trans(query)) * scale
        if MASKED:
            from_ = tl.load(low + row, mask=real, other=0)
            to = tl.load(high + row, mask=real, other=0)
            s = tl.where((key[:, None] >= from_[None]) & (key[:, None] < to[None]), s,
                         float("-inf"))  # fmt: skip
        p = tl.exp2(s - length[None])
        dv = tl.dot(p.to(up.dtype), up, dv)
        dp = tl.dot(v, tl.trans(up))
        ds = p * (dp - inner[None])
        dk = tl.dot(ds.to(query.dtype), query, dk)
    return dk, dv


@triton.jit
def _keys(
    q, k, v, do, lse, delta, dk, dv, low, high, table,
    rows, size, scale, factor, stride_q, stride_k, stride_out,
    GROUP: tl.constexpr, HEADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
) -> None:  # fmt: skip
    tile, part = tl.program_id(0), tl.program_id(1)
    key = tile * N + tl.arange(0, N)
    inside = (key < size)[:, None]
    at = tl.arange(0, D)[None]
    shared = (part * HEADS // GROUP) * D
    place = key.to(tl.int64)[:, None] * stride_k + shared + at
    keys = tl.load(k + place, mask=inside, other=0.0)
    values = tl.load(v + place, mask=inside, other=0.0)
    acc_k = tl.zeros([N, D], dtype=tl.float32)
    acc_v = tl.zeros([N, D], dtype=tl.float32)
    first, whole = tl.load(table + tile * 4), tl.load(table + tile * 4 + 1)
    until, last = tl.load(table + tile * 4 + 2), tl.load(table + tile * 4 + 3)
    for number in range(HEADS):
        head = part * HEADS + number
        flat = head.to(tl.int64) * rows
        acc_k, acc_v = _gather(acc_k, acc_v, keys, values, q + head * D, do + head * D,
                               lse + flat, delta + flat, low, high, key, first, whole,
                               rows, scale, stride_q, True, M, D)  # fmt: skip
        acc_k, acc_v = _gather(acc_k, acc_v, keys, values, q + head * D, do + head * D,
                               lse + flat, delta + flat, low, high, key, whole, until,
                               rows, scale, stride_q, False, M, D)  # fmt: skip
        acc_k, acc_v = _gather(acc_k, acc_v, keys, values, q + head * D, do + head * D,
                               lse + flat, delta + flat, low, high, key, until, last,
                               rows, scale, stride_q, True, M, D)  # fmt: skip
    place = key.to(tl.int64)[:, None] * stride_out + part * D + at
    tl.store(dk + place, (acc_k * factor).to(dk.dtype.element_ty), mask=inside)
    tl.store(dv + place, acc_v.to(dv.dtype.element_ty), mask=inside)


def attend(
    q: Tensor, ck: Tensor, cv: Tensor, bk: Tensor, bv: Tensor, spans: Spans, head_dim: int
) -> tuple[Tensor, Tensor]:
    """q [q,h*d]; context keys and values [S,g*d], block ones [Q,g*d] -> out [q,h*d], lse [h,q]."""
    rows, heads, group = _sizes(q, ck, head_dim)
    out = torch.empty_like(q)
    lse = torch.empty(heads, rows, dtype=torch.float32, device=q.device)
    shape, options = _split(FORWARD)
    grid: Any = (triton.cdiv(rows, shape["M"]), heads)
    _forward[grid](
        q, ck, cv, bk, bv, out, lse, *_runs(spans), *_tables(spans, shape),
        rows, len(ck), len(bk), head_dim**-0.5 * LOG2E, q.stride(0), ck.stride(0),
        GROUP=group, D=head_dim, **shape, **options,
    )  # fmt: skip
    return out, lse


def attend_backward(
    do: Tensor, q: Tensor, ck: Tensor, cv: Tensor, bk: Tensor, bv: Tensor,
    out: Tensor, lse: Tensor, spans: Spans, head_dim: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, ck, cv, bk, bv."""
    rows, heads, group = _sizes(q, ck, head_dim)
    delta, dq = torch.empty_like(lse), torch.empty_like(q)
    factor = head_dim**-0.5
    shape, options = _split(QUERIES)
    grid: Any = (triton.cdiv(rows, shape["M"]), heads)
    _queries[grid](
        q, ck, cv, bk, bv, out, do, lse, delta, dq, *_runs(spans), *_tables(spans, shape),
        rows, len(ck), len(bk), factor * LOG2E, factor, q.stride(0), ck.stride(0),
        GROUP=group, D=head_dim, **shape, **options,
    )  # fmt: skip
    shape, options = _split(KEYS)
    made = []
    # A context tile is seen by thousands of rows: one program per query head, summed after. A block
    # tile is seen by its own rows alone: one program takes all heads of its group.
    for name, run, k, v, each in (
        ("context", spans.context, ck, cv, 1),
        ("block", spans.block, bk, bv, group),
    ):
        wide = heads // each * head_dim
        kind = torch.float32 if each < group else k.dtype
        dk, dv = (torch.empty(len(k), wide, dtype=kind, device=k.device) for _ in range(2))
        grid = (triton.cdiv(len(k), shape["N"]), heads // each)
        _keys[grid](
            q, k, v, do, lse, delta, dk, dv, run.low, run.high,
            spans.by_keys(name, shape["M"], shape["N"]),
            rows, len(k), factor * LOG2E, factor, q.stride(0), k.stride(0), wide,
            GROUP=group, HEADS=each, D=head_dim, **shape, **options,
        )  # fmt: skip
        if each < group:
            dk, dv = (t.view(len(k), -1, group, head_dim).sum(2).flatten(1) for t in (dk, dv))
        made += [dk.to(k.dtype), dv.to(v.dtype)]
    return dq, made[0], made[1], made[2], made[3]


def _sizes(q: Tensor, k: Tensor, head_dim: int) -> tuple[int, int, int]:
    return len(q), q.shape[1] // head_dim, q.shape[1] // k.shape[1]


def _split(config: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    shape = {"M": config["rows"], "N": config["keys"]}
    return shape, {key: config[key] for key in ("num_warps", "num_stages")}


def _runs(spans: Spans) -> tuple[Tensor, ...]:
    return spans.context.low, spans.context.high, spans.block.low, spans.block.high


def _tables(spans: Spans, shape: dict[str, int]) -> tuple[Tensor, Tensor]:
    rows, keys = shape["M"], shape["N"]
    return spans.by_rows("context", rows, keys), spans.by_rows("block", rows, keys)
