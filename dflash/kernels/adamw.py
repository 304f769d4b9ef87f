"""One pass of AdamW: gradient, fp32 master, both moments and the bf16 weight, each touched once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 2048


@triton.jit
def _step(
    grad, master, first, second, weight, norm, size, divisor, clip,
    lr, beta1, beta2, eps, decay, correction1, correction2,
    PUBLISH: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    length, share = tl.load(norm), tl.load(divisor)
    if length < float("inf"):  # false for NaN too: then nothing is touched
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        factor = tl.minimum(1.0, clip / (length / share + 1e-6)) / share
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * factor
        m = tl.load(first + at, mask=inside, other=0.0)
        v = tl.load(second + at, mask=inside, other=0.0)
        p = tl.load(master + at, mask=inside, other=0.0)
        m += (g - m) * (1.0 - beta1)
        v = v * beta2 + g * g * (1.0 - beta2)
        p = p * (1.0 - lr * decay) - (lr / correction1) * m / (tl.sqrt(v / correction2) + eps)
        tl.store(first + at, m, mask=inside)
        tl.store(second + at, v, mask=inside)
        tl.store(master + at, p, mask=inside)
        if PUBLISH:
            tl.store(weight + at, p.to(weight.dtype.element_ty), mask=inside)


def adamw_step(
    grad: Tensor,
    master: Tensor,
    first: Tensor,
    second: Tensor,
    weight: Tensor | None,
    norm: Tensor,
    *,
    divisor: Tensor,
    clip: float,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    step: int,
) -> None:
    """Update in place. `norm` is that of the undivided gradients; not finite, it stops the step.

    `norm` and `divisor` are scalars on the device, in fp32: nobody waits for their values.
    """
    size = master.numel()
    grid: Any = (triton.cdiv(size, BLOCK),)
    _step[grid](
        grad, master, first, second, weight, norm, size, divisor, clip,
        lr, betas[0], betas[1], eps, decay, 1.0 - betas[0] ** step, 1.0 - betas[1] ** step,
        PUBLISH=weight is not None, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
