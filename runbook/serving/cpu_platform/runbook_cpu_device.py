"""The platform: SGLang's CPU device operations, with none of its compiled CPU kernels.

SGLang's own CPU engine needs a kernel library that is built from source for machines with AMX.
Declared as an out-of-tree platform, every layer takes its plain torch code path instead. That
serves dense Llama and Qwen3 models; hybrid models, speculation and the host cache tier need a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.platforms.cpu import CpuDeviceMixin  # type: ignore[import-not-found,unused-ignore]
from sglang.srt.platforms.device_mixin import (  # type: ignore[import-not-found,unused-ignore]
    PlatformEnum,
)
from sglang.srt.platforms.interface import (  # type: ignore[import-not-found,unused-ignore]
    PlatformCapabilities,
    SRTPlatform,
)

if TYPE_CHECKING:
    import torch


class PlainCpu(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc,unused-ignore]
    """A CPU as any machine has it."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def is_pin_memory_available(self, device: torch.device | None = None) -> bool:
        # Pinned pages serve transfers to an accelerator, and torch refuses them without one.
        return False
