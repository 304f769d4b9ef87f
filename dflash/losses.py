"""The loss over block slots, computed head and all in chunks.

The head is frozen, so the only gradient it must give is the one of its input. That is taken chunk
by chunk in the forward pass: logits of a chunk live once, are never stored and never recomputed.
Sums are returned, not means: the divisor is global over micro-batches and ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from dflash.fused_layer import ops_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOptions:
    """How slots are weighed and logits are made."""

    block_size: int
    kind: str = "ce"
    gamma: float = 7.0
    dpace_alpha: float = 0.5
    chunk_rows: int = 4096
    """Logits alive at once. Fewer leave tensor cores idle in the product with the head: on an H200
    3,840 rows run at 88 % of the speed of 4,096, whose tiles fill their last wave."""
    output_multiplier: float = 1.0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSums:
    """Sums over one micro-batch; add them over all, then divide."""

    loss: Tensor  # scalar, with gradient: sum of weight * cross entropy
    divisor: Tensor  # scalar: sum of weights (ce) or supervised slots (dpace)
    slot_right: Tensor  # [B] drafts equal to the label
    slot_seen: Tensor  # [B] supervised slots
    accepted: Tensor  # scalar: leading right drafts, summed over blocks
    blocks: Tensor  # scalar: blocks with at least one supervised slot

    def totals(self) -> Tensor:
        """Everything but the graph as one vector, to be added up over ranks."""
        parts = [self.loss.detach(), self.divisor, self.accepted, self.blocks]
        return torch.cat(
            [torch.stack([p.double() for p in parts]), self.slot_right, self.slot_seen]
        )


def decay_weights(slot: Tensor, gamma: float) -> Tensor:
    """exp(-(k-1)/gamma) for slot k, and 0 for slot 0, which repeats the anchor."""
    return torch.where(slot > 0, torch.exp(-(slot.float() - 1) / gamma), 0.0)


def dpace_weights(ce: Tensor, supervised: Tensor, alpha: float) -> Tensor:
    """[n,B-1] D-PACE weights from cross entropies: how much later acceptance hangs on each slot."""
    confidence = torch.where(supervised, (1 - alpha) * torch.exp(-ce) + alpha, 1.0)
    reach = confidence.cumprod(-1) * supervised
    return reach.flip(-1).cumsum(-1).flip(-1)


def logits_of(hidden: Tensor, head: Callable[[Tensor], Tensor], options: LossOptions) -> Tensor:
    """fp32 logits as the engines compute them."""
    logits = head(hidden).float() * options.output_multiplier
    if options.softcap > 0:
        logits = options.softcap * torch.tanh(logits / options.softcap)
    return logits


@dataclass(frozen=True, slots=True)
class FrozenHead:
    """A head that is one matrix: then logits need no autograd, and live in one reused buffer."""

    weight: Tensor  # [V,H]
    bias: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.weight, self.bias)


def block_loss(
    out: Tensor,
    labels: Tensor,
    supervised: Tensor,
    slot: Tensor,
    head: Callable[[Tensor], Tensor],
    options: LossOptions,
    *,
    correction: Tensor | None = None,
    rows: Tensor | None = None,
) -> LossSums:
    """out [Q,H] (normed), labels, supervised and slot [Q]; rows without a label skip the head.

    `correction` is added to the logits: of a head that holds a sample of the vocabulary. `rows`:
    out holds these rows only, which are all the supervised ones.
    """
    size = options.block_size
    keep = supervised.nonzero().squeeze(-1) if rows is None else rows  # [r]
    hidden = out.detach() if rows is not None else out.detach()[keep]
    wanted = labels[keep]
    needs_grad = out.requires_grad and torch.is_grad_enabled()
    if isinstance(head, FrozenHead) and correction is None:
        ce, right, unit_grad = _direct(hidden, wanted, head, options, gradient=needs_grad)
    else:
        ce, right, unit_grad = _traced(hidden, wanted, head, options, correction, needs_grad)
    if options.kind == "dpace":
        spread = torch.zeros(len(labels), device=ce.device).index_put((keep,), ce)
        weights = dpace_weights(
            spread.view(-1, size)[:, 1:], supervised.view(-1, size)[:, 1:], options.dpace_alpha
        )
        weights = functional.pad(weights, (1, 0)).reshape(-1)[keep]
        divisor = supervised.sum().double()
    else:
        weights = decay_weights(slot[keep], options.gamma)
        divisor = weights.sum().double()
    place = keep if rows is None else None
    loss = _Attach.apply(out, place, unit_grad, weights, (weights * ce).sum())
    hits = torch.zeros(len(labels), dtype=torch.bool, device=out.device).index_put((keep,), right)
    by_block = hits.view(-1, size)
    seen = supervised.view(-1, size)
    run = by_block[:, 1:].long().cumprod(-1).sum()
    return LossSums(
        loss=loss,
        divisor=divisor,
        slot_right=by_block.sum(0).double(),
        slot_seen=seen.sum(0).double(),
        accepted=run.double(),
        blocks=seen.any(-1).sum().double(),
    )


def _direct(
    hidden: Tensor, labels: Tensor, head: FrozenHead, options: LossOptions, *, gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Per row: cross entropy, whether the argmax is the label, d(ce)/d(hidden)."""
    ops = ops_for(hidden)
    weight, count = head.weight, len(hidden)
    chunk = options.chunk_rows
    logits = torch.empty(min(chunk, count), len(weight), dtype=hidden.dtype, device=hidden.device)
    ce = torch.empty(count, dtype=torch.float32, device=hidden.device)
    right = torch.empty(count, dtype=torch.bool, device=hidden.device)
    grads = torch.empty_like(hidden) if gradient else hidden.new_empty(0)
    for start in range(0, count, chunk):
        part = slice(start, min(start + chunk, count))
        here = logits[: part.stop - start]
        torch.mm(hidden[part], weight.t(), out=here)
        if head.bias is not None:
            here += head.bias
        ce[part], right[part] = ops.cross_entropy_(
            here, labels[part], scale=options.output_multiplier, cap=options.softcap,
            gradient=gradient,
        )  # fmt: skip
        if gradient:
            torch.mm(here, weight, out=grads[part])
    return ce, right, grads


def _traced(
    hidden: Tensor,
    labels: Tensor,
    head: Callable[[Tensor], Tensor],
    options: LossOptions,
    correction: Tensor | None,
    gradient: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for any head, by autograd."""
    ce, right, grads = [], [], []
    for start in range(0, len(hidden), options.chunk_rows):
        part = slice(start, start + options.chunk_rows)
        with torch.set_grad_enabled(gradient):
            source = hidden[part].requires_grad_(gradient)
            logits = logits_of(source, head, options)
            logits = logits if correction is None else logits + correction
            each = functional.cross_entropy(logits, labels[part], reduction="none")
            if gradient:
                grads.append(torch.autograd.grad(each.sum(), source)[0])
        ce.append(each.detach())
        right.append(logits.detach().argmax(-1) == labels[part])
    if not ce:
        empty = hidden.new_zeros(0, dtype=torch.float32)
        return empty, empty.bool(), hidden.new_zeros(0, hidden.shape[-1])
    return torch.cat(ce), torch.cat(right), torch.cat(grads) if grads else hidden.new_zeros(0)


class _Attach(torch.autograd.Function):
    """Hang a loss whose gradient is already known onto the graph of `out`."""

    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        keep: Tensor | None,
        unit_grad: Tensor,
        weights: Tensor,
        loss: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(keep, unit_grad, weights)
        ctx.shape = out.shape
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        keep, unit_grad, weights = ctx.saved_tensors
        weighted = unit_grad * (weights * grad)[:, None].to(unit_grad.dtype)
        if keep is None:
            return weighted, None, None, None, None
        full = unit_grad.new_zeros(ctx.shape)
        full[keep] = weighted
        return full, None, None, None, None
