"""The optimiser in slices: each drafter rank keeps masters and moments of its part (ZeRO-1).

What a checkpoint holds is whole and the same as without slices, so that a run may go on with any
number of drafter ranks, in slices or not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dflash.feed import peer_errors
from dflash.optim import Optimiser
from dflash.reduce import Bucket, GradientReducer, all_gather, make_buckets

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from dflash.train_config import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def optimiser_for(
    drafter: nn.Module, config: TrainConfig, group: Any
) -> tuple[Optimiser, GradientReducer | None]:
    """The optimiser that is asked for, and what sums gradients when there are several ranks."""
    if group is None or config.drafters == 1:
        return Optimiser(drafter, config), None
    wire = getattr(torch, config.reduce_dtype)
    if config.shard_optimizer:
        sharded = ShardedOptimiser(drafter, config, group, wire=wire)
        return sharded, sharded.reducer
    optimiser = Optimiser(drafter, config)
    ranks = dist.get_world_size(group)
    buckets = make_buckets(optimiser.params, ranks, sharded=False, wire=wire)
    return optimiser, GradientReducer(optimiser.params, buckets, group, masters=optimiser.masters)


class ShardedOptimiser(Optimiser):
    """Same steps as `Optimiser`, each rank computing its slice; every rank calls every method."""

    def __init__(
        self, drafter: nn.Module, config: TrainConfig, group: Any, *, wire: torch.dtype
    ) -> None:
        super().__init__(drafter, config)
        self._triton = False  # the step below is the only one
        self.group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.buckets = make_buckets(self.params, self.ranks, sharded=True, wire=wire)
        self.reducer = GradientReducer(self.params, self.buckets, group)
        self.weights = [self._flatten(bucket) for bucket in self.buckets]
        self.slices = [self._slice(flat).float().clone() for flat in self.weights]
        self.masters = [*self.params]  # the copies of the parent are not needed
        self.adamw = torch.optim.AdamW(
            self._slice_groups(), lr=config.lr, betas=config.betas, foreach=True
        )

    def _flatten(self, bucket: Bucket) -> Tensor:
        """Weights of a bucket one after the other; the parameters become views of that."""
        like = self.params[bucket.params[0]]
        flat = torch.zeros(len(bucket.grads), dtype=like.dtype, device=like.device)
        for place, i in enumerate(bucket.params):
            p, start = self.params[i], bucket.starts[place]
            view = flat[start : start + p.numel()].view_as(p)
            view.copy_(p.detach())
            p.data = view
        return flat

    def _slice(self, flat: Tensor) -> Tensor:
        return flat.chunk(self.ranks)[self.rank]

    def _slice_groups(self) -> list[dict[str, Any]]:
        matrices: list[Tensor] = []
        vectors: list[Tensor] = []
        for bucket, part in zip(self.buckets, self.slices, strict=True):
            (matrices if self.params[bucket.params[0]].ndim > 1 else vectors).append(part)
        return [
            {"params": matrices, "weight_decay": self.config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]

    @torch.no_grad()
    def adopt(self) -> None:
        for flat, part in zip(self.weights, self.slices, strict=True):
            part.copy_(self._slice(flat))

    def collect(self) -> None:
        """The reducer has them already."""

    @torch.no_grad()
    def _step_by_torch(self, lr: float, divisor: float) -> tuple[float, str]:
        shards = [bucket.shard for bucket in self.buckets]
        torch._foreach_div_(shards, divisor)
        square = torch.stack([part.square().sum() for part in shards]).sum()
        with peer_errors("another drafter rank"):
            dist.all_reduce(square, group=self.group)
            norm = square.sqrt()
            value = float(norm)
            if not math.isfinite(value):
                return value, self._first_bad_slice()
            torch._foreach_mul_(shards, (self.config.clip / (norm + 1e-6)).clamp_max(1.0))
            for part, grad in zip(self.slices, shards, strict=True):
                part.grad = grad
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self.adamw.step()
            self._publish()
        return value, ""

    def _first_bad_slice(self) -> str:
        """The first parameter, by number, whose gradient is not finite on any rank."""
        nowhere = len(self.params)
        found = nowhere
        for bucket in self.buckets:
            bad = (~torch.isfinite(bucket.shard)).nonzero()
            for at in bad[:1].flatten().tolist():
                offset = at + self.rank * len(bucket.shard)
                place = sum(start <= offset for start in bucket.starts) - 1
                found = min(found, bucket.params[place])
        first = torch.tensor(found, device=self.params[0].device)
        dist.all_reduce(first, op=dist.ReduceOp.MIN, group=self.group)
        return self.names[int(first)] if int(first) < nowhere else "the norm of all gradients"

    @torch.no_grad()
    def _publish(self) -> None:
        for flat, part in zip(self.weights, self.slices, strict=True):
            all_gather(flat, part.to(flat.dtype), self.group)

    # -- whole in a checkpoint

    def state_dict(self) -> dict[str, Any]:
        """As `Optimiser.state_dict`, in host memory; gathered bucket by bucket."""
        order = self._order()
        state: dict[int, dict[str, Tensor]] = {}
        if self.adamw.state:
            parts = {name: self._whole(self._moment(name)) for name in MOMENTS}
            step = self.adamw.state[self.slices[0]]["step"]
            for number, i in enumerate(order):
                moments = {name: parts[name][i] for name in MOMENTS}
                state[number] = {"step": step.clone(), **moments}
        groups = self.adamw.state_dict()["param_groups"]
        matrices = sum(self.params[i].ndim > 1 for i in order)
        groups[0]["params"] = list(range(matrices))
        groups[1]["params"] = list(range(matrices, len(order)))
        own: list[Tensor] = []
        if self.params[0].dtype != torch.float32:
            masters = self._whole(lambda number: self.slices[number])
            own = [masters[i] for i in range(len(self.params))]
        adamw = {"state": state, "param_groups": groups}
        return {"adamw": adamw, "masters": own, "skips": self.skips}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skips = int(state["skips"])
        self.adopt()
        if state["masters"]:
            self._cut(dict(enumerate(state["masters"])), self.slices)
        saved = state["adamw"]["state"]
        if not saved:
            return
        numbers = {i: number for number, i in enumerate(self._order())}
        for name in MOMENTS:
            moments = [torch.zeros_like(part) for part in self.slices]
            self._cut({i: saved[numbers[i]][name] for i in numbers}, moments)
            for part, moment in zip(self.slices, moments, strict=True):
                self.adamw.state[part][name] = moment
        for part in self.slices:
            self.adamw.state[part]["step"] = saved[0]["step"].clone()

    def _order(self) -> list[int]:
        """Parameters as an optimiser over whole ones counts them: matrices first."""
        numbers = range(len(self.params))
        return sorted(numbers, key=lambda i: (self.params[i].ndim <= 1, i))

    def _moment(self, name: str) -> Callable[[int], Tensor]:
        return lambda number: self.adamw.state[self.slices[number]][name]

    def _whole(self, part: Callable[[int], Tensor]) -> dict[int, Tensor]:
        """All ranks' slices put together, by parameter; only the first rank needs the result."""
        found: dict[int, Tensor] = {}
        for number, bucket in enumerate(self.buckets):
            flat = torch.empty_like(bucket.grads)
            all_gather(flat, part(number), self.group)
            if self.rank:
                continue
            host = flat.cpu()
            for place, i in enumerate(bucket.params):
                start = bucket.starts[place]
                like = self.params[i]
                found[i] = host[start : start + like.numel()].view(like.shape).clone()
        return found or {i: torch.empty(0) for i in range(len(self.params))}

    def _cut(self, whole: dict[int, Tensor], into: list[Tensor]) -> None:
        """This rank's slices of whole tensors."""
        for bucket, part in zip(self.buckets, into, strict=True):
            flat = torch.zeros(len(bucket.grads))
            for place, i in enumerate(bucket.params):
                start = bucket.starts[place]
                flat[start : start + whole[i].numel()] = whole[i].reshape(-1)
            part.copy_(self._slice(flat))
