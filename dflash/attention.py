"""Who sees whom: the one visibility rule of block drafting, and three ways to compute with it.

Queries are the slots of all blocks; keys are the context tokens followed by those same slots. The
rule is written once (`visible`) as a broadcasting expression: the dense mask of the eager and SDPA
backends, flex attention's predicate and the inference path all evaluate it.

Shapes: S context tokens, Q = N*B block slots, h heads, g key/value heads, d head width.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from dflash.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

PADDING_DOC = -1
"""Document of a context token that nobody may see."""
INVALID_DOC = -2
"""Document of a block that only fills the fixed count: it sees nothing."""
CONTEXT_BLOCK = -1
"""Block number of a context token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where every query and key stands. Positions count within a document."""

    context_doc: Tensor  # [S]
    context_pos: Tensor  # [S]
    block_doc: Tensor  # [Q]
    block_id: Tensor  # [Q]
    block_anchor: Tensor  # [Q] position of the block's slot 0
    block_pos: Tensor  # [Q] anchor + slot

    @property
    def key_doc(self) -> Tensor:
        return torch.cat([self.context_doc, self.block_doc])

    @property
    def key_block(self) -> Tensor:
        return torch.cat([torch.full_like(self.context_doc, CONTEXT_BLOCK), self.block_id])

    @property
    def key_pos(self) -> Tensor:
        return torch.cat([self.context_pos, self.block_pos])


def visible(
    q_doc: Tensor,
    q_block: Tensor,
    q_anchor: Tensor,
    q_pos: Tensor,
    k_doc: Tensor,
    k_block: Tensor,
    k_pos: Tensor,
    *,
    window: int | None,
    causal: bool,
) -> Tensor:
    """True where a query slot may see a key. Arguments broadcast against each other.

    Context: the same document, strictly before the anchor (the target has not run on the anchor
    yet). Block: its own block only, in causal layers not beyond the slot. A window counts the query
    itself and is measured from the slot's own position, as the serving engines do; measured from
    the anchor, training would show later slots context that serving hides.
    """
    same_doc = (q_doc == k_doc) & (q_doc >= 0)
    in_context = (k_block == CONTEXT_BLOCK) & (k_pos < q_anchor)
    in_block = q_block == k_block
    if causal:
        in_block = in_block & (k_pos <= q_pos)
    seen = same_doc & (in_context | in_block)
    if window is not None:
        seen = seen & (q_pos - k_pos < window) & (k_pos - q_pos < window)
    return seen


def dense_mask(layout: Layout, *, window: int | None, causal: bool) -> Tensor:
    """The rule as a boolean [Q, S+Q]."""
    return visible(
        layout.block_doc[:, None],
        layout.block_id[:, None],
        layout.block_anchor[:, None],
        layout.block_pos[:, None],
        layout.key_doc[None],
        layout.key_block[None],
        layout.key_pos[None],
        window=window,
        causal=causal,
    )


class Attention:
    """Attention over one layout with one backend; masks are built once per kind of layer."""

    def __init__(self, layout: Layout, *, backend: str = "auto") -> None:
        self.layout = layout
        on_cpu = layout.block_pos.device.type == "cpu"
        self.backend = ("sdpa" if on_cpu else "flex") if backend == "auto" else backend
        if self.backend == "flex" and _flex_broken:
            self.backend = "sdpa"
        self._masks: dict[tuple[str, int | None, bool], Any] = {}

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, window: int | None, causal: bool
    ) -> Tensor:
        """q [1,h,Q,d], k and v [1,g,S+Q,d] -> [1,h,Q,d]."""
        if self.backend == "flex":
            try:
                mask = self._mask("flex", window, causal)
                return _flex()(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
            except Exception as error:  # torch raises many kinds; SDPA is always right
                if is_out_of_memory(error):  # a dense mask would need more
                    raise
                _give_up_flex(error)
                self.backend = "sdpa"
        mask = self._mask("dense", window, causal)
        return _eager(q, k, v, mask) if self.backend == "eager" else _sdpa(q, k, v, mask)

    def _mask(self, kind: str, window: int | None, causal: bool) -> Any:
        key = (kind, window, causal)
        if key not in self._masks:
            build = dense_mask if kind == "dense" else flex_mask
            self._masks[key] = build(self.layout, window=window, causal=causal)
        return self._masks[key]


def _eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """The reference: fp32 softmax; a slot that sees nothing gets zeros instead of NaN."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    weights = torch.where(mask.any(-1, keepdim=True), weights, 0.0)
    return weights.to(v.dtype) @ v


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    # A boolean mask selects; added to the scores it would mask nothing.
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
    )
    return torch.where(mask.any(-1, keepdim=True), out, 0.0)


def flex_mask(layout: Layout, *, window: int | None, causal: bool) -> Any:
    """The rule as a flex-attention block mask."""
    from torch.nn.attention.flex_attention import create_block_mask

    k_doc, k_block, k_pos = layout.key_doc, layout.key_block, layout.key_pos

    def predicate(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return visible(
            layout.block_doc[q],
            layout.block_id[q],
            layout.block_anchor[q],
            layout.block_pos[q],
            k_doc[k],
            k_block[k],
            k_pos[k],
            window=window,
            causal=causal,
        )

    device = layout.block_pos.device
    # Compiled, the predicate never becomes a dense [Q, S+Q] tensor; the CPU has no need of it.
    return create_block_mask(
        predicate,
        None,
        None,
        len(layout.block_pos),
        len(k_pos),
        device=device,
        _compile=device.type != "cpu",
    )


_flex_broken: list[str] = []
_flex_compiled: list[Callable[..., Tensor]] = []


def _flex() -> Callable[..., Tensor]:
    if not _flex_compiled:
        from torch.nn.attention.flex_attention import flex_attention

        # dynamic: the context length changes every step, and each recompile stalls all ranks.
        _flex_compiled.append(torch.compile(flex_attention, dynamic=True))
    return _flex_compiled[0]


def _give_up_flex(error: Exception) -> None:
    _flex_broken.append(str(error))
    warnings.warn(
        f"flex attention does not work here ({type(error).__name__}: {str(error)[:200]}); "
        "using SDPA with a dense mask, which needs more memory",
        RuntimeWarning,
        stacklevel=3,
    )
