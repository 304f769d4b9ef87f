"""Shapes of Qwen3.6-27B and its drafter, random documents, and how a step is timed."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dflash.config import DrafterConfig
from dflash.shards import Row

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = {
    "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 64, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 248320, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
}  # fmt: skip
TAPS = (1, 16, 31, 46, 61)
DOCUMENTS, LENGTH, PROMPT, BLOCK, LAYERS, WINDOW, MASK = 4, 2048, 128, 16, 5, 2048, 248070


def drafter_shape(**changes: Any) -> DrafterConfig:
    options: dict[str, Any] = {
        "num_layers": LAYERS, "block_size": BLOCK, "taps": TAPS, "sliding_window": WINDOW,
        "mask_token_id": MASK,
    }  # fmt: skip
    return DrafterConfig.from_target_config(TARGET, **(options | changes))


@dataclass
class RandomSet:
    """Documents of one length, whose tokens after the prompt are supervised."""

    rows: list[Row]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(row.input_ids) for row in self.rows])

    def row(self, i: int) -> Row:
        return self.rows[i]


def documents(count: int = DOCUMENTS, length: int = LENGTH) -> RandomSet:
    draw = np.random.default_rng(0)
    mask = np.ones(length, dtype=np.uint8)
    mask[:PROMPT] = 0
    ids = draw.integers(0, 200_000, (count, length), dtype=np.int32)
    return RandomSet([Row(id=str(i), input_ids=row, loss_mask=mask) for i, row in enumerate(ids)])


@dataclass(frozen=True)
class Timing:
    """Median of the steps after the first two, the first one apart."""

    step_s: float
    first_s: float
    peak_gib: float
    before_gib: float
    graphs: int
    """That torch.compile made before the clock counts."""
    recompiled: int
    """And while it counted: above zero, the time is not that of a step."""


def timed(step: Callable[[], None], steps: int) -> Timing:
    cuda = torch.cuda.is_available()
    wait = torch.cuda.synchronize if cuda else (lambda: None)
    wait()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    times, graphs, began_with = [], [], compiled_graphs()
    for _ in range(steps + 2):
        began = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - began)
        graphs.append(compiled_graphs() - began_with)
    return Timing(
        step_s=float(np.median(times[2:])),
        first_s=times[0],
        peak_gib=(torch.cuda.max_memory_allocated() if cuda else 0) / 2**30,
        before_gib=before / 2**30,
        graphs=graphs[1],
        recompiled=graphs[-1] - graphs[1],
    )


def compiled_graphs() -> int:
    """Of this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def table_row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def gemm_ceiling(size: int = 8192) -> float:
    """TFLOP/s of a square bf16 product on random data, the median of ten after three."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        a @ b
        marks[1].record()
        torch.cuda.synchronize()
        times.append(marks[0].elapsed_time(marks[1]) / 1e3)
    return 2 * size**3 / float(np.median(times[3:])) / 1e12


def machine() -> str:
    if not torch.cuda.is_available():
        return json.dumps({"cpu": platform.machine(), "torch": torch.__version__})
    names = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return json.dumps(names | {"bf16_tflops": round(gemm_ceiling())})
