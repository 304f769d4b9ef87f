"""Compares Triton kernels with `dflash.fused_reference`; run with TRITON_INTERPRET=1 on a CPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import triton

from dflash import fused_reference as plain
from dflash import kernels
from dflash.kernels import attention, cross_entropy
from dflash.spans import spans_of
from tests.dflash.test_fused import LONG, MIXED, SOME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def close(made: Any, wanted: Any, what: str, tolerance: float = 2e-5) -> None:
    pairs = zip(made, wanted, strict=True) if isinstance(wanted, tuple) else [(made, wanted)]
    for number, (a, b) in enumerate(pairs):
        distance = float((a.double() - b.double()).norm() / (b.double().norm() + 1e-12))
        assert distance < tolerance, f"{what}, result {number}: {distance}"


def both(name: str, *inputs: Tensor, tolerance: float = 2e-5, **options: Any) -> None:
    """The kernel and its twin on copies of the same inputs; in-place results are compared too."""
    copies: list[Sequence[Tensor]] = [[t.clone() for t in inputs] for _ in range(2)]
    made = getattr(kernels, name)(*copies[0], **options)
    wanted = getattr(plain, name)(*copies[1], **options)
    close(made, wanted, name, tolerance)


def check_pointwise() -> None:
    x, w, d, up = torch.randn(9, 48), torch.randn(48), torch.randn(9, 48), torch.randn(9, 48)
    both("rms_norm", x, w, eps=1e-6, delta=d)
    both("rms_norm", x, w, eps=1e-6, plus_one=True)
    both("rms_norm_backward", up, x, w, eps=1e-6, residual=d)
    narrow = torch.randn(16)
    cos, sin = torch.rand(9, 8).repeat(1, 2), torch.rand(9, 8).repeat(1, 2)
    both("rotate_heads", x, narrow, cos, sin, eps=1e-6)
    both("rotate_heads_backward", up, x, narrow, cos, sin, eps=1e-6)
    both("swiglu", torch.randn(5, 140))
    both("swiglu_backward_", torch.randn(5, 70), torch.randn(5, 140))
    both("gated_norm", torch.randn(6, 3, 16), torch.randn(6, 48), narrow, eps=1e-6)
    both("gate_heads", torch.randn(2, 3, 5, 16), torch.randn(2, 5, 3, 16))
    heads = torch.randn(2, 5, 3, 32)[..., :16]
    cos, sin = (torch.rand(2, 5, 4).repeat(1, 1, 2) for _ in range(2))
    for plus_one in (True, False):
        wanted = plain.rotate_part(heads, narrow, cos, sin, 1e-6, plus_one=plus_one)
        made = kernels.rotate_part(heads, narrow, cos, sin, 1e-6, plus_one=plus_one)
        close(made, wanted, "rotate_part")


def check_attention() -> None:
    for tile in (attention.FORWARD, attention.QUERIES, attention.KEYS):
        tile.update(rows=16, keys=16)
    width = 16
    for lay, rows in ((MIXED, None), (LONG, None), (LONG, SOME)):
        count, size = len(lay.block_pos), len(lay.context_pos)
        asked = count if rows is None else len(rows)
        for window, causal in ((None, False), (None, True), (3, True), (30, False)):
            spans = spans_of(lay, window=window, causal=causal, rows=rows)
            shapes = ((asked, 4), (size, 2), (size, 2), (count, 2), (count, 2))
            inputs = [torch.randn(n, h * width) for n, h in shapes]
            out, lse = kernels.attend(*inputs, spans, width)
            wanted, wanted_lse = plain.attend(*inputs, spans, width)
            close(out, wanted, "attend")
            some = torch.isfinite(wanted_lse)
            assert torch.equal(some, torch.isfinite(lse))
            close(lse[some], wanted_lse[some], "log sums")
            up = torch.randn_like(out)
            close(
                kernels.attend_backward(up, *inputs, out, lse, spans, width),
                plain.attend_backward(up, *inputs, out, lse, spans, width),
                f"attend_backward, window {window}, causal {causal}",
            )


def check_cross_entropy() -> None:
    cross_entropy.TILE.update(DEEP=2, WIDE=32)
    for width in (300, 64, 40, 256):
        labels = torch.randint(0, width, (9,))
        labels[0], labels[1] = width - 1, 0
        for cap, scale in ((0.0, 1.0), (5.0, 1.5)):
            logits = (torch.randn(9, width) * 3).bfloat16().float()  # coarse: there are ties
            logits[2, labels[2]] = 20
            logits[3, labels[3]] = logits[3].max()
            copies = logits.clone(), logits.clone()
            made = kernels.cross_entropy_(copies[0], labels, scale=scale, cap=cap, gradient=True)
            wanted = plain.cross_entropy_(copies[1], labels, scale=scale, cap=cap, gradient=True)
            close(made[0], wanted[0], "cross entropy")
            assert torch.equal(made[1], wanted[1]), "which argmax is right"
            close(copies[0], copies[1], "gradient of logits")


def check_adamw() -> None:
    start = torch.randn(50, 3)
    wanted = start.clone().requires_grad_()
    torch_adamw = torch.optim.AdamW([wanted], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    master, weight = start.clone(), torch.zeros(50, 3)
    first, second = torch.zeros(50, 3), torch.zeros(50, 3)
    options: dict[str, Any] = {
        "divisor": torch.tensor(4.0), "clip": 1.0,
        "lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "decay": 0.1,
    }  # fmt: skip
    for step in (1, 2, 3):
        grad = torch.randn(50, 3) * 3
        wanted.grad = grad / 4
        torch.nn.utils.clip_grad_norm_([wanted], 1.0)
        torch_adamw.step()
        kernels.adamw_step(grad, master, first, second, weight, grad.norm(), step=step, **options)
    close(master, wanted.detach(), "master")
    close(weight, wanted.detach(), "published weight")
    nothing = torch.tensor(float("nan"))
    kernels.adamw_step(grad, master, first, second, weight, nothing, step=4, **options)
    close(master, wanted.detach(), "a norm that is not finite stops the step")


def check_delta_rule() -> None:
    rows, length, keys, values, width = 2, 150, 2, 4, 16
    channels = 2 * keys * width + values * width
    raw = torch.randn(rows * length, channels + values * width + 2 * values)
    alike = raw.clone()
    alike[:, :channels] = alike[:1, :channels]  # equal keys, hardly any decay: the hardest system
    conv, bias = torch.randn(channels, 4), torch.randn(values)
    sizes = {
        "rows": rows, "key_heads": keys, "value_heads": values, "key_width": width,
        "value_width": width,
    }  # fmt: skip
    both("delta_rule", raw, conv, torch.rand(values), bias, tolerance=1e-4, **sizes)
    both("delta_rule", alike, conv, torch.full((values,), -9.0), bias, tolerance=1e-3, **sizes)


def mend_interpreter() -> None:
    """Triton 3.6 makes ints of arrays with one element as NumPy from 2.4 on refuses."""
    from triton.runtime import interpreter

    real = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        real(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched


if __name__ == "__main__":
    torch.manual_seed(0)
    if triton.__version__.startswith("3.6."):
        mend_interpreter()
    globals()[f"check_{sys.argv[1]}"]()
    print("equal")
