"""Sums of gradients over drafter ranks, sent while the rest of the backward still runs.

Gradients of all micro-batches of a step add up in fp32, in a few flat buckets. As soon as the last
backward has filled one it is reduced, in the same order on every rank, on the transport's own
stream: over the ranks (all-reduce), or to the rank that owns the slice (reduce-scatter).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dflash.feed import peer_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BUCKET_NUMBERS = 32 * 2**20
"""Gradients in one bucket: large enough for the link's full rate, small enough to overlap."""


@dataclass(slots=True, eq=False)
class Bucket:
    """Parameters whose gradients travel together; all of them decay, or none."""

    params: list[int]
    """Their numbers."""
    starts: list[int]
    """Where each begins in `grads`."""
    grads: Tensor  # fp32 [numbers, padded to a multiple of the ranks]
    shard: Tensor  # this rank's part of the sum, or all of it
    wire: Tensor  # what travels: `grads`, or the same in bf16
    wire_shard: Tensor
    missing: set[int] = field(default_factory=set)
    work: Any = None

    def view(self, place: int, like: Tensor) -> Tensor:
        start = self.starts[place]
        return self.grads[start : start + like.numel()].view_as(like)


def make_buckets(
    params: Sequence[Tensor], ranks: int, *, sharded: bool, wire: torch.dtype
) -> list[Bucket]:
    """Matrices and the rest apart, buckets in the order in which backward reaches them.

    Within one the drafter's own order: gate and up lie side by side, for one product to do both.
    """
    buckets: list[Bucket] = []
    backward = list(range(len(params)))[::-1]
    for numbers in (
        [i for i in backward if params[i].ndim > 1],
        [i for i in backward if params[i].ndim <= 1],
    ):
        group: list[int] = []
        for i in numbers:
            if group and sum(params[j].numel() for j in [*group, i]) > BUCKET_NUMBERS:
                buckets.append(_bucket(params, sorted(group), ranks, sharded, wire))
                group = []
            group.append(i)
        if group:
            buckets.append(_bucket(params, sorted(group), ranks, sharded, wire))
    return buckets


def _bucket(
    params: Sequence[Tensor], numbers: list[int], ranks: int, sharded: bool, wire: torch.dtype
) -> Bucket:
    starts, end = [], 0
    for i in numbers:
        starts.append(end)
        end += params[i].numel()
    size, device = -(-end // ranks) * ranks, params[0].device
    grads = torch.zeros(size, device=device)
    shard = torch.zeros(size // ranks, device=device) if sharded else grads
    same = wire == torch.float32
    return Bucket(
        params=numbers,
        starts=starts,
        grads=grads,
        shard=shard,
        wire=grads if same else torch.zeros_like(grads, dtype=wire),
        wire_shard=shard if same else torch.zeros_like(shard, dtype=wire),
    )


class GradientReducer:
    """Takes each gradient as backward makes it; after `finish` the sums lie in the buckets."""

    def __init__(
        self,
        params: Sequence[Tensor],
        buckets: list[Bucket],
        group: Any,
        *,
        masters: Sequence[Tensor] | None = None,
    ) -> None:
        """With `masters` each rank gets all sums, as their gradients; else its own slices."""
        self.buckets, self.group, self.masters = buckets, group, masters
        self._place = {
            id(params[i]): (bucket, i, bucket.view(place, params[i]))
            for bucket in buckets
            for place, i in enumerate(bucket.params)
        }
        self._fresh = {i for bucket in buckets for i in bucket.params}
        self._last, self._next = False, 0
        for param in params:
            param.register_post_accumulate_grad_hook(self._arrived)

    def expect_last(self) -> None:
        """The next backward is the step's last: what it completes may travel."""
        self._last, self._next = True, 0
        for bucket in self.buckets:
            bucket.missing = set(bucket.params)

    def finish(self) -> None:
        """Wait until everything has been summed."""
        with peer_errors("another drafter rank"):
            for bucket in self.buckets[self._next :]:  # a parameter without a gradient holds it
                self._launch(bucket)
            for bucket in self.buckets:
                bucket.work.wait()
                bucket.work = None
                self._receive(bucket)
        self._fresh = {i for bucket in self.buckets for i in bucket.params}
        self._last = False
        if self.masters is not None:
            for _, i, view in self._place.values():
                self.masters[i].grad = view

    def _arrived(self, param: Tensor) -> None:
        bucket, i, view = self._place[id(param)]
        assert param.grad is not None, "called because there is one"
        if i in self._fresh:
            self._fresh.discard(i)
            view.copy_(param.grad)
        else:
            view.add_(param.grad)
        param.grad = None
        bucket.missing.discard(i)
        while self._last and self._next < len(self.buckets):
            ready = self.buckets[self._next]
            if ready.missing:
                break
            self._launch(ready)
            self._next += 1

    def _launch(self, bucket: Bucket) -> None:
        for place, i in enumerate(bucket.params):
            if i in self._fresh:  # no micro-batch reached it
                start = bucket.starts[place]
                end = ([*bucket.starts, len(bucket.grads)])[place + 1]
                bucket.grads[start:end].zero_()
        if bucket.wire is not bucket.grads:
            bucket.wire.copy_(bucket.grads)
        if self.masters is not None:
            bucket.work = dist.all_reduce(bucket.wire, group=self.group, async_op=True)
            return
        bucket.work = reduce_scatter(bucket.wire_shard, bucket.wire, self.group)

    def _receive(self, bucket: Bucket) -> None:
        if bucket.wire is not bucket.grads:
            bucket.shard.copy_(bucket.wire_shard if self.masters is None else bucket.wire)


def reduce_scatter(part: Tensor, whole: Tensor, group: Any) -> Any:
    """Start to sum `whole` over the ranks, each of which receives its `part`."""
    name = "reduce_scatter_single"  # newer torch warns of the older name
    call = getattr(dist, name, None) or dist.reduce_scatter_tensor
    return call(part, whole, group=group, async_op=True)


def all_gather(whole: Tensor, part: Tensor, group: Any) -> None:
    """Every rank's `part` one after the other into `whole`."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    call(whole, part, group=group)
