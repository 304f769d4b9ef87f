"""Time and memory of one drafter step on a GPU, at the shapes of Qwen3.6-27B's drafter.

    PYTHONPATH=. python3 tests/benchmarks/drafter_step.py [--anchors 512 128] [--steps 10]

Weights, states and documents are random; what is timed is what `dflash train` runs for a step:
blocks, forward, head and loss, backward, clip and AdamW over fp32 masters. The first step, with its
compilation, is told apart.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dflash.batches import Batches
from dflash.config import DrafterConfig
from dflash.drafter import Drafter
from dflash.losses import LossOptions, block_loss
from dflash.optim import Optimiser
from dflash.shards import Row
from dflash.train_config import TrainConfig

TARGET = {
    "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 64, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 248320, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
}  # fmt: skip
DOCUMENTS, LENGTH, PROMPT, BLOCK = 4, 2048, 128, 16


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


def documents() -> RandomSet:
    draw = np.random.default_rng(0)
    mask = np.ones(LENGTH, dtype=np.uint8)
    mask[:PROMPT] = 0
    ids = draw.integers(0, 200_000, (DOCUMENTS, LENGTH), dtype=np.int32)
    return RandomSet([Row(id=str(i), input_ids=row, loss_mask=mask) for i, row in enumerate(ids)])


def measure(anchors: int, steps: int, attention: str) -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    shape = DrafterConfig.from_target_config(
        TARGET, num_layers=5, block_size=BLOCK, num_taps=5, sliding_window=2048,
        mask_token_id=248070,
    )  # fmt: skip
    config = TrainConfig(target="-", data="-", out="-", anchors_per_doc=anchors)
    drafter = Drafter(shape).to(device, torch.bfloat16)
    optimiser = Optimiser(drafter, config)
    head = torch.randn(shape.vocab_size, shape.hidden_size, device=device, dtype=torch.bfloat16)
    head *= 0.02
    data: Any = documents()
    batches = Batches(
        data, batch_docs=DOCUMENTS, anchors_per_doc=anchors, block_size=BLOCK,
        mask_token_id=shape.mask_token_id, max_length=LENGTH, seed=0,
    )  # fmt: skip
    states = torch.randn(
        DOCUMENTS * LENGTH, shape.context_width, device=device, dtype=torch.bfloat16
    )
    options = LossOptions(block_size=BLOCK, chunk_rows=config.head_chunk_rows)
    times, parts = [], []
    torch.cuda.reset_peak_memory_stats()
    for number in range(steps + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        rows = batches.drafter_rows(batches.micro_batch(number), fixed=True).to(device)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        marks[0].record()
        out = drafter(head[rows.block_ids][None], states[None], rows.layout, attention)
        marks[1].record()
        sums = block_loss(
            out[0], rows.labels, rows.supervised, rows.slot,
            lambda h: torch.nn.functional.linear(h, head), options,
        )  # fmt: skip
        marks[2].record()
        sums.loss.backward()
        optimiser.collect()
        marks[3].record()
        optimiser.step(1e-4, divisor=float(sums.divisor))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        parts.append([a.elapsed_time(b) for a, b in itertools.pairwise(marks)])
    step = np.median(times[1:])
    forward, loss, backward = np.median(np.array(parts[1:]), axis=0)
    print(
        f"{anchors} anchors a document, {attention}: step {step * 1e3:.0f} ms (forward "
        f"{forward:.0f}, head and loss {loss:.0f}, backward {backward:.0f}), "
        f"{DOCUMENTS * LENGTH / step:,.0f} tok/s, "
        f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, first step {times[0]:.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--anchors", type=int, nargs="+", default=[512, 128])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--attention", default="auto")
    args = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    for anchors in args.anchors:
        measure(anchors, args.steps, args.attention)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
