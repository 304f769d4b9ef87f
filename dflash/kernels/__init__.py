"""Triton kernels for NVIDIA GPUs. Each has a plain torch twin in `dflash.fused_reference`.

Tile sizes are fixed, chosen by measurement on an H200: tuning at run time would cost the first step
more than it saves. Imported only where there is Triton and a GPU.
"""

from __future__ import annotations

from dflash.kernels.adamw import adamw_step
from dflash.kernels.attention import attend, attend_backward
from dflash.kernels.cross_entropy import cross_entropy_
from dflash.kernels.delta_rule import delta_rule
from dflash.kernels.norm import gated_norm, rms_norm, rms_norm_backward
from dflash.kernels.rotary import gate_heads, rotate_heads, rotate_heads_backward, rotate_part
from dflash.kernels.swiglu import swiglu, swiglu_backward_

__all__ = [
    "adamw_step", "attend", "attend_backward", "cross_entropy_", "delta_rule", "gate_heads",
    "gated_norm",
    "rms_norm", "rms_norm_backward", "rotate_heads", "rotate_heads_backward", "rotate_part",
    "swiglu", "swiglu_backward_",
]  # fmt: skip
