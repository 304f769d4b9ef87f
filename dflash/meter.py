"""How fast a run is, and what holds it back: rates of each role, waits, FLOPs, memory.

As seen by the first drafter rank; the others do the same work on other documents.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dflash.errors import InputInvalid
from dflash.plan_inputs import GPUS
from dflash.plan_shapes import TargetShape, drafter_flops

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dflash.batches import MicroBatch
    from dflash.config import DrafterConfig
    from dflash.feed import Delivery
    from dflash.ranks import Role

GIB = 2**30
_TARGET = ("busy_s", "waited_s", "tokens")
WARM_UP = 5
"""Steps that compile, allocate and connect; they are in no rate."""


def peak_tflops(device: torch.device) -> float | None:
    """Dense bf16 peak of this GPU, when its data sheet is known here."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).lower().replace("-", " ")
    known = {key.replace("-", " "): gpu.tflops for key, gpu in GPUS.items()}
    return next((tflops for key, tflops in known.items() if key in name), None)


def peak_memory_gib(device: torch.device) -> float:
    """The most that was alive at once: tensors on a GPU, else this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


@dataclass(slots=True)
class _Sums:
    """Over all steps after the first few."""

    seconds: float = 0.0
    tokens: int = 0
    waited_s: float = 0.0
    target: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TARGET, 0.0))


class Meter:
    """Fed once a step; answers with the step's own figures, and with those of the run."""

    def __init__(
        self,
        role: Role,
        device: torch.device,
        shape: DrafterConfig,
        target: Mapping[str, Any],
        anchors: int,
    ) -> None:
        self.role, self.device, self.shape, self.anchors = role, device, shape, anchors
        self.peak = peak_tflops(device)
        self.steps, self.sums = 0, _Sums()
        self.target: TargetShape | None = None
        with contextlib.suppress(InputInvalid):  # a mixture of experts trains, but is not counted
            self.target = TargetShape.from_config(target, "the target's config")

    def step(
        self, batches: Sequence[MicroBatch], deliveries: Sequence[Delivery], seconds: float
    ) -> dict[str, Any]:
        """Figures of one step of `seconds`, over all ranks."""
        seconds = max(seconds, 1e-9)
        tokens = sum(batch.tokens for batch in batches)
        waited = sum(delivery.waited_s for delivery in deliveries)
        times = [delivery.target for delivery in deliveries]
        target = {name: float(sum(getattr(one, name) for one in times)) for name in _TARGET}
        self.steps += 1
        if self.steps > WARM_UP:
            self.sums.seconds += seconds
            self.sums.tokens += tokens
            self.sums.waited_s += waited
            for name in _TARGET:
                self.sums.target[name] += target[name]
        busy, idle = target["busy_s"], target["waited_s"]
        drafter_busy = seconds - waited - (busy if self.role.colocated else 0.0)
        measured: dict[str, Any] = {
            "tok_s": tokens * self.role.drafters / seconds,
            "step_s": seconds,
            "drafter_busy": max(0.0, drafter_busy) / seconds,
            "target_busy": busy / seconds if self.role.colocated else busy / max(busy + idle, 1e-9),
            "drafter_waited_s": waited,
            "target_waited_s": idle,
            "target_busy_s": busy,
            "memory_gib": peak_memory_gib(self.device),
        }
        flops = self._flops(batches)
        if flops is not None:
            tflops = flops * self.role.drafters / self.role.world / seconds / 1e12
            measured["tflops_per_device"] = tflops
            if self.peak is not None:
                measured["mfu"] = tflops / self.peak
        return measured

    def _flops(self, batches: Sequence[MicroBatch]) -> float | None:
        if self.target is None:
            return None
        layers = max(self.shape.target_layer_ids) + 1
        total = 0.0
        for length in (len(row.input_ids) for batch in batches for row in batch.rows):
            total += self.target.forward_flops(length, layers=layers, head=False)
            total += drafter_flops(self.shape, length, min(self.anchors, length)).total
        return total

    def rates(self) -> dict[str, Any]:
        """Of the run so far, without its first steps: what each role does when it does not wait.

        The bound is what the roles' own rates allow under this split; below it is lost to waiting
        on one another, to the loop and to the link.
        """
        sums, target = self.sums, self.sums.target
        if sums.seconds <= 0 or not target["tokens"] or target["busy_s"] <= 0:
            return {}
        target_rate = target["tokens"] / target["busy_s"]
        busy = sums.seconds - sums.waited_s - (target["busy_s"] if self.role.colocated else 0.0)
        drafter_rate = sums.tokens / max(busy, 1e-9)
        bound = self.role.drafters / (1 / target_rate + 1 / drafter_rate)
        slower = "both"
        if not self.role.colocated:
            targets, drafters = self.role.targets * target_rate, self.role.drafters * drafter_rate
            bound, slower = min((targets, "target"), (drafters, "drafter"))
        idle = target["waited_s"] / max(target["busy_s"] + target["waited_s"], 1e-9)
        reached = sums.tokens * self.role.drafters / sums.seconds
        return {
            "target_tok_s": target_rate,
            "drafter_tok_s": drafter_rate,
            "bound_tok_s": bound,
            "slower": slower,
            "tok_s": reached,
            "of_bound": reached / bound,
            "target_waits": idle,
            "drafter_waits": sums.waited_s / sums.seconds,
            "steps": self.steps - WARM_UP,
            "memory_gib": peak_memory_gib(self.device),
        }
