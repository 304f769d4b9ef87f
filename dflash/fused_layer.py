"""A drafter layer as one step of autograd, its gradient written out.

Why by hand: of a layer's dozen activations only those that are dear to make again are kept (3.6 GB
instead of 8 at 32,768 slots), gradients of sums are added up inside the matrix products, and the
last layer computes nothing for slots that carry no label. Matrix products are cuBLAS's; everything
between them is one kernel each, `dflash.kernels` on a GPU and `dflash.fused_reference` elsewhere.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dflash.errors import DflashError

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.drafter import Drafter, Layer, Rope
    from dflash.spans import Spans


def ops_for(tensor: Tensor) -> Any:
    """The module with the fused operations for a tensor's device."""
    if tensor.is_cuda:
        import dflash.kernels as made
    else:
        import dflash.fused_reference as made  # type: ignore[no-redef]
    return made


def fused_works(drafter: Drafter) -> bool:
    """Whether kernels and shape allow the fused path on the drafter's device."""
    config, weight = drafter.config, drafter.fc.weight
    shape = config.head_dim & (config.head_dim - 1) == 0 and not config.attention_bias
    if not weight.is_cuda:
        return shape
    small = weight.dtype in (torch.bfloat16, torch.float16)
    return shape and small and importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all layers share, and what one of them may leave out."""

    block_rope: Rope
    context_rope: Rope
    eps: float
    head_dim: int
    spans: Spans
    rows: Tensor | None = None
    """Compute queries and MLP of these rows only."""
    repeated: int = 0
    """Block size where all slots but the first of a block hold one and the same input."""


def run_layer(
    layer: Layer, x: Tensor, delta: Tensor | None, c: Tensor, frame: Frame
) -> tuple[Tensor, Tensor]:
    """x (+ delta) [Q,H] and context [S,H] -> residual stream and what must be added to it."""
    a, m = layer.self_attn, layer.mlp
    out: tuple[Tensor, Tensor] = _LayerStep.apply(
        x, delta, c, frame, layer.input_layernorm.weight, a.q_proj.weight, a.k_proj.weight,
        a.v_proj.weight, a.o_proj.weight, a.q_norm.weight, a.k_norm.weight,
        layer.post_attention_layernorm.weight, m.gate_proj.weight, m.up_proj.weight,
        m.down_proj.weight,
    )  # fmt: skip
    return out


def run_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """norm(x + delta)."""
    out: Tensor = _NormStep.apply(x, delta, weight, eps)
    return out


class _Distinct:
    """Rows of a layer's input without the repetitions, and the way back."""

    def __init__(self, x: Tensor, size: int) -> None:
        self.size = size
        self.blocks = len(x) // size
        place = torch.arange(len(x), device=x.device)
        self.place = torch.where(place % size == 0, place // size, self.blocks)

    def of(self, x: Tensor) -> Tensor:
        return torch.cat([x[:: self.size], x[1:2]])

    def spread(self, y: Tensor) -> Tensor:
        return y[self.place]

    def collect(self, dy: Tensor) -> Tensor:
        by_block = dy.view(self.blocks, self.size, -1)
        rest = by_block[:, 1:].sum((0, 1), dtype=torch.float32)
        return torch.cat([by_block[:, 0], rest[None].to(dy.dtype)])


def _of(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else x.index_select(0, rows)


def lay_side_by_side(first: torch.nn.Parameter, second: torch.nn.Parameter) -> None:
    """Move two matrices that read the same input into one piece of memory, where they own theirs.

    One product then does for both, forward and backward; parameters and their names stay as they
    are.
    """
    own = all(p.untyped_storage().nbytes() == p.nbytes for p in (first, second))
    if own and not first.is_meta:
        whole = torch.cat([first.detach(), second.detach()])
        first.data, second.data = whole[: len(first)], whole[len(first) :]


def side_by_side(first: Tensor, second: Tensor) -> Tensor:
    """Both as one matrix: a view where they lie together, else a copy."""
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    if same and second.storage_offset() == first.storage_offset() + first.numel():
        return first.as_strided((len(first) + len(second), first.shape[1]), first.stride())
    return torch.cat([first, second])


def _at(rope: Rope, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    return (rope.cos, rope.sin) if rows is None else (rope.cos[rows], rope.sin[rows])


def _rotated(
    ops: Any, q: Tensor, k: Tensor, ck: Tensor, nq: Tensor, nk: Tensor, frame: Frame
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, block keys and context keys as attention reads them."""
    own, other, eps = frame.block_rope, frame.context_rope, frame.eps
    return (
        ops.rotate_heads(q, nq, *_at(own, frame.rows), eps),
        ops.rotate_heads(k, nk, own.cos, own.sin, eps),
        ops.rotate_heads(ck, nk, other.cos, other.sin, eps),
    )


class _LayerStep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor | None, c: Tensor, frame: Frame,
        w_in: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor, nq: Tensor, nk: Tensor,
        w_post: Tensor, wg: Tensor, wu: Tensor, wd: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ops, eps, rows = ops_for(x), frame.eps, frame.rows
        distinct = _Distinct(x, frame.repeated) if frame.repeated else None
        source = x if distinct is None else distinct.of(x)
        x1, y = ops.rms_norm(source, w_in, eps, delta)
        q, k, v = _of(y, rows) @ wq.t(), y @ wk.t(), y @ wv.t()
        del y
        if distinct is not None:
            q, k, v = distinct.spread(q), distinct.spread(k), distinct.spread(v)
        ck, cv = c @ wk.t(), c @ wv.t()
        rq, rk, rck = _rotated(ops, q, k, ck, nq, nk, frame)
        out, lse = ops.attend(rq, rck, cv, rk, v, frame.spans, frame.head_dim)
        del rq, rk, rck
        stream = x1 if distinct is None else x
        x2, y2 = ops.rms_norm(_of(stream, rows), w_post, eps, out @ wo.t())
        both = y2 @ side_by_side(wg, wu).t()
        del y2
        m = ops.swiglu(both) @ wd.t()
        ctx.frame, ctx.distinct, ctx.delta = frame, distinct, delta is not None
        ctx.spent = False
        ctx.save_for_backward(x1, c, q, k, v, ck, cv, out, lse, x2, both,
                              w_in, wq, wk, wv, wo, nq, nk, w_post, wg, wu, wd)  # fmt: skip
        return x2, m

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dx2: Tensor, dm: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.spent:
            raise DflashError(
                "A fused layer's gradient was asked for twice; the first one used up its inputs.",
                "Choose --attention flex where a graph must be kept.",
            )
        ctx.spent = True
        frame, distinct, rows = ctx.frame, ctx.distinct, ctx.frame.rows
        (x1, c, q, k, v, ck, cv, out, lse, x2, both,
         w_in, wq, wk, wv, wo, nq, nk, w_post, wg, wu, wd) = ctx.saved_tensors  # fmt: skip
        ops, eps = ops_for(x1), frame.eps
        dx2, dm = dx2.contiguous(), dm.contiguous()
        # MLP
        both, h = ops.swiglu_backward_(dm @ wd, both)
        dwd = dm.t() @ h
        del h
        dy2 = both @ side_by_side(wg, wu)
        dx2, dw_post, y2 = ops.rms_norm_backward(dy2, x2, w_post, eps, dx2)
        dwg, dwu = (both.t() @ y2).chunk(2)
        del y2, dy2, both
        # attention
        dwo = dx2.t() @ out
        rq, rk, rck = _rotated(ops, q, k, ck, nq, nk, frame)
        dq, dck, dcv, dk, dv = ops.attend_backward(
            dx2 @ wo, rq, rck, cv, rk, v, out, lse, frame.spans, frame.head_dim
        )
        del rq, rk, rck
        cos, sin = _at(frame.block_rope, rows)
        dq, dnq = ops.rotate_heads_backward(dq, q, nq, cos, sin, eps)
        rope = frame.block_rope
        dk, dnk = ops.rotate_heads_backward(dk, k, nk, rope.cos, rope.sin, eps)
        rope = frame.context_rope
        dck, more = ops.rotate_heads_backward(dck, ck, nk, rope.cos, rope.sin, eps)
        if distinct is not None:
            dq, dk, dv = distinct.collect(dq), distinct.collect(dk), distinct.collect(dv)
        dy = dk @ wk
        dy.addmm_(dv, wv)
        residual: Tensor | None = dx2
        if rows is None:
            dy.addmm_(dq, wq)
        else:
            dy.index_copy_(0, rows, _of(dy, rows).addmm_(dq, wq))
            residual = torch.zeros_like(dy).index_copy_(0, rows, dx2)
        if distinct is not None:
            residual = None  # the input is frozen
        dx1, dw_in, y = ops.rms_norm_backward(dy, x1, w_in, eps, residual)
        dwq = dq.t() @ _of(y, rows)
        dwk, dwv = dk.t() @ y, dv.t() @ y
        dwk.addmm_(dck.t(), c)
        dwv.addmm_(dcv.t(), c)
        dc = dck @ wk
        dc.addmm_(dcv, wv)
        dx = None if distinct is not None else dx1
        return (dx, dx if ctx.delta else None, dc, None, dw_in, dwq, dwk, dwv, dwo, dnq,
                dnk + more, dw_post, dwg, dwu, dwd)  # fmt: skip


class _NormStep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        total, y = ops_for(x).rms_norm(x, weight, eps, delta)
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.delta = eps, delta is not None
        made: Tensor = y
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        total, weight = ctx.saved_tensors
        dx, dw, _ = ops_for(dy).rms_norm_backward(dy.contiguous(), total, weight, ctx.eps)
        return dx, dx if ctx.delta else None, dw, None
