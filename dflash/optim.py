"""AdamW over fp32 masters, clipping, and the guard against NaN."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dflash.errors import DflashError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from dflash.train_config import TrainConfig

PATIENCE = 10
"""Steps in a row whose gradient may be skipped as not finite before the run gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one optimiser step did."""

    grad_norm: float
    skipped: str
    """The first parameter with a gradient that is not finite; empty when the step was taken."""


class Optimiser:
    """Masters are the parameters themselves in fp32 training, fp32 copies of bf16 ones otherwise.

    bf16 alone loses updates smaller than 1/256 of a weight, and norms drift until they are NaN.
    """

    def __init__(self, drafter: nn.Module, config: TrainConfig) -> None:
        self.config = config
        self.names = [name for name, _ in drafter.named_parameters()]
        self.params = list(drafter.parameters())
        self.masters = [
            p if p.dtype == torch.float32 else p.detach().float().requires_grad_()
            for p in self.params
        ]
        self.adamw = torch.optim.AdamW(
            self._groups(), lr=config.lr, betas=config.betas, foreach=True
        )
        self.skips = 0
        self._waiting: dict[int, Tensor] = {}
        """Gradients of a first micro-batch, by number of the parameter, as backward made them."""
        self._triton = importlib.util.find_spec("triton") is not None

    def _groups(self) -> list[dict[str, Any]]:
        """Matrices decay, norms and biases do not; all at one learning rate, none left out."""
        matrices = [m for m in self.masters if m.ndim > 1]
        vectors = [m for m in self.masters if m.ndim <= 1]
        decay = self.config.weight_decay
        return [
            {"params": matrices, "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0},
        ]

    @torch.no_grad()
    def adopt(self) -> None:
        """Take the parameters as they are now for the masters' values."""
        for p, master in zip(self.params, self.masters, strict=True):
            if master is not p:
                master.copy_(p)

    def collect(self) -> None:
        """Add the gradients of a micro-batch to the masters', in fp32.

        The first ones wait as they are: where no second micro-batch comes, nobody needs them wider.
        """
        for i, (p, master) in enumerate(zip(self.params, self.masters, strict=True)):
            if master is p or p.grad is None:
                continue
            if master.grad is None and i not in self._waiting:
                self._waiting[i] = p.grad
            else:
                self._widen(i)
                assert master.grad is not None, "widened just now"
                master.grad += p.grad
            p.grad = None

    def _widen(self, i: int) -> None:
        waiting = self._waiting.pop(i, None)
        if waiting is not None:
            self.masters[i].grad = waiting.float()

    def gradients(self) -> list[Tensor]:
        """One per parameter in fp32; zeros where a step had nothing for it."""
        for i, master in enumerate(self.masters):
            self._widen(i)
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [master.grad for master in self.masters if master.grad is not None]

    def step(
        self, lr: float, *, divisor: float | Tensor, meanwhile: Callable[[], None] | None = None
    ) -> StepReport:
        """Divide the summed gradients, clip, update. A gradient with NaN updates nothing.

        `meanwhile` is called once before the result is waited for: a GPU still computes then.
        """
        begin = meanwhile or (lambda: None)
        if self.masters[0].is_cuda and self._triton:
            value, skipped = self._step_in_one_pass(lr, divisor, begin)
        else:
            begin()
            value, skipped = self._step_by_torch(lr, float(divisor))
        self._waiting.clear()
        self.adamw.zero_grad(set_to_none=True)
        self.skips = self.skips + 1 if skipped else 0
        if self.skips >= (1 if self.config.nonfinite == "stop" else PATIENCE):
            times = f"{self.skips} steps in a row" if self.skips > 1 else "this step"
            raise DflashError(
                f"The gradient was not finite in {times}, first in {skipped}.",
                "Lower --lr, or resume from an earlier checkpoint with another --seed.",
            )
        return StepReport(grad_norm=value, skipped=skipped)

    def _step_by_torch(self, lr: float, divisor: float) -> tuple[float, str]:
        grads = self.gradients()
        torch._foreach_div_(grads, divisor)
        norm = torch.nn.utils.get_total_norm(grads)
        value = float(norm)
        skipped = "" if math.isfinite(value) else self._first_bad(grads)
        if not skipped:
            torch.nn.utils.clip_grads_with_norm_(self.masters, self.config.clip, norm)
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self.adamw.step()
            self._publish()
        return value, skipped

    @torch.no_grad()
    def _step_in_one_pass(
        self, lr: float, divisor: float | Tensor, meanwhile: Callable[[], None]
    ) -> tuple[float, str]:
        """The same by one kernel a tensor: gradients stay in bf16, nothing is read twice."""
        from dflash.kernels.adamw import adamw_step

        grads = []
        for i, master in enumerate(self.masters):
            grad = self._waiting.get(i, master.grad)
            grads.append(torch.zeros_like(master) if grad is None else grad)
        parts = torch._foreach_norm(grads, 2, dtype=torch.float32)  # noqa: SLF001
        norm = torch.linalg.vector_norm(torch.stack(parts))
        share = (torch.ones_like(norm) * divisor).float()
        taken = self._moments()
        decays = {id(m): g["weight_decay"] for g in self.adamw.param_groups for m in g["params"]}
        for p, master, grad in zip(self.params, self.masters, grads, strict=True):
            state = self.adamw.state[master]
            adamw_step(
                grad.contiguous(), master, state["exp_avg"], state["exp_avg_sq"],
                None if p is master else p, norm,
                divisor=share, clip=self.config.clip, lr=lr, betas=self.config.betas, eps=1e-8,
                decay=decays[id(master)], step=taken + 1,
            )  # fmt: skip
        for group in self.adamw.param_groups:
            group["lr"] = lr
        meanwhile()
        value = float(norm)  # the only wait; a norm that is not finite has stopped every kernel
        if not math.isfinite(value):
            return value, self._first_bad(grads)
        for master in self.masters:
            self.adamw.state[master]["step"] += 1
        return value / float(share), ""

    def _moments(self) -> int:
        """Steps taken so far; makes torch's own state where there is none yet."""
        for master in self.masters:
            if not self.adamw.state[master]:
                self.adamw.state[master] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                }
        return int(self.adamw.state[self.masters[0]]["step"])

    def _first_bad(self, grads: list[Tensor]) -> str:
        for name, grad in zip(self.names, grads, strict=True):
            if not bool(torch.isfinite(grad).all()):
                return name
        return "the norm of all gradients"

    @torch.no_grad()
    def _publish(self) -> None:
        for p, master in zip(self.params, self.masters, strict=True):
            if master is not p:
                p.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        own = [m.detach() for p, m in zip(self.params, self.masters, strict=True) if m is not p]
        return {"adamw": self.adamw.state_dict(), "masters": own, "skips": self.skips}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self.skips = int(state["skips"])
        copies = [m for p, m in zip(self.params, self.masters, strict=True) if m is not p]
        for master, saved in zip(copies, state["masters"], strict=True):
            master.copy_(saved)
