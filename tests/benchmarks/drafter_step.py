"""Time and memory of one drafter step on a GPU, at the shapes of Qwen3.6-27B's drafter.

    PYTHONPATH=. python3 tests/benchmarks/drafter_step.py [--anchors 512 128] [--peers]
        [--peer-limit 240] [--peer-masks-once] [--profile] [--tiny]

Weights, states and documents are random; what is timed is what `dflash train` runs for a step:
blocks, forward, head and loss, backward, clip and AdamW over fp32 masters. The first step, with its
compilation, is told apart. First, loss and gradients are held against plain torch in fp32.

A peer runs in a process of its own. One that is not done within the limit is told with the place
where it was, and its stack on standard error; the others go on, and the whole table comes once more
at the end. TORCH_LOGS=recompiles and the like reach it. `--tiny`: toy shapes on a CPU.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from dflash.batches import Batches
from dflash.drafter import Drafter
from dflash.losses import FrozenHead, LossOptions, block_loss
from dflash.optim import Optimiser
from dflash.train_config import TrainConfig
from tests.benchmarks.limited import bounded, watched
from tests.benchmarks.peer_steps import PEERS
from tests.benchmarks.shapes import (
    BLOCK,
    DOCUMENTS,
    LENGTH,
    RandomSet,
    documents,
    drafter_shape,
    machine,
    table_row,
    timed,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash.batches import DrafterRows
    from dflash.config import DrafterConfig

OURS = "dflash"
FLEX = "flex"
"""Filled to one shape, as flex attention needs it."""


class OurStep:
    """What `dflash train` does for one micro-batch, and the optimiser's step."""

    def __init__(
        self,
        data: RandomSet,
        states: torch.Tensor,
        head: torch.Tensor,
        anchors: int,
        attention: str = "auto",
        shape: DrafterConfig | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.shape = shape or drafter_shape()
        torch.manual_seed(1)
        config = TrainConfig(target="-", data="-", out="-", anchors_per_doc=anchors)
        self.attention, self.states = attention, states
        self.head = FrozenHead(head)
        self.drafter = Drafter(self.shape).to(states.device, dtype)
        self.optimiser = Optimiser(self.drafter, config)
        source: Any = data
        self.batches = Batches(
            source, batch_docs=len(data), anchors_per_doc=anchors, block_size=BLOCK,
            mask_token_id=self.shape.mask_token_id, max_length=LENGTH, seed=0,
        )  # fmt: skip
        self.options = LossOptions(block_size=BLOCK, chunk_rows=config.head_chunk_rows)
        self.number = 0
        self._next: DrafterRows | None = None

    def _rows(self, number: int) -> DrafterRows:
        batch = self.batches.micro_batch(number)
        rows = self.batches.drafter_rows(batch, fixed=self.attention == FLEX)
        device = self.states.device
        return rows.pinned().to(device) if device.type == "cuda" else rows

    def gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Backward of one micro-batch; its loss and divisor."""
        rows = self._next or self._rows(self.number)
        out = self.drafter(
            self.head.weight[rows.block_ids][None], self.states[None], rows.layout,
            self.attention, rows=rows.kept, repeated=True,
        )  # fmt: skip
        sums = block_loss(
            out[0], rows.labels, rows.supervised, rows.slot, self.head, self.options,
            rows=rows.kept,
        )  # fmt: skip
        sums.loss.backward()
        return sums.loss.detach(), sums.divisor

    def _look_ahead(self) -> None:
        self._next = self._rows(self.number + 1)  # while the GPU works

    def __call__(self) -> None:
        _, divisor = self.gradients()
        self.optimiser.collect()
        self.optimiser.step(1e-4, divisor=divisor, meanwhile=self._look_ahead)
        self.number += 1


def tensors(
    width: int, hidden: int, vocab: int, tokens: int = DOCUMENTS * LENGTH
) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    head = torch.randn(vocab, hidden, device=device, dtype=torch.bfloat16) * 0.02
    return torch.randn(tokens, width, device=device, dtype=torch.bfloat16), head


def check() -> None:
    """Fused bf16 may not be further from fp32 than plain bf16 is; exits otherwise."""
    shape = drafter_shape(
        num_layers=3, hidden_size=1024, intermediate_size=2816, num_heads=16, vocab_size=20_000,
        mask_token_id=19_999, sliding_window=700,
    )  # fmt: skip
    data = documents()
    for row in data.rows:
        row.input_ids[:] %= 19_000
    states, head = tensors(shape.context_width, 1024, 20_000)
    found: dict[str, tuple[float, dict[str, torch.Tensor]]] = {}
    for name, attention, dtype in (
        ("fp32", "sdpa", torch.float32), ("bf16", "sdpa", torch.bfloat16),
        ("fused", "fused", torch.bfloat16),
    ):  # fmt: skip
        step = OurStep(data, states, head, 60, attention, shape, torch.bfloat16)
        step.drafter.to(dtype)
        if dtype == torch.float32:
            step.states, step.head = states.float(), FrozenHead(head.float())
        loss, divisor = step.gradients()
        grads = {
            n: p.grad.float() for n, p in step.drafter.named_parameters() if p.grad is not None
        }
        found[name] = (float(loss / divisor), grads)
    truth = found["fp32"]
    errors = {
        name: {
            n: float((g - truth[1][n]).norm() / truth[1][n].norm())
            for n, g in found[name][1].items()
        }
        for name in ("bf16", "fused")
    }
    worst = {name: max(e.items(), key=lambda pair: pair[1]) for name, e in errors.items()}
    report = {"loss": {n: f[0] for n, f in found.items()}, "worst_gradient": worst}
    print("check", json.dumps(report), flush=True)
    assert abs(found["fused"][0] / truth[0] - 1) < 2e-3, "the loss differs"
    for name, error in errors["fused"].items():
        assert error < 1.5 * errors["bf16"][name] + 2e-3, (name, error, errors["bf16"][name])


def profile(step: Callable[[], None], label: str) -> None:
    """Where the time of one step goes, by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as made:
        step()
        torch.cuda.synchronize()
    events = [e for e in made.key_averages() if e.device_type.name == "CUDA"]
    total = sum(e.self_device_time_total for e in events)
    print(f"profile of {label}: {total / 1e3:.1f} ms of kernels", flush=True)
    for e in sorted(events, key=lambda e: -e.self_device_time_total)[:28]:
        print(f"{e.self_device_time_total / 1e3:9.2f} ms {e.count:5d} x {e.key[:90]}")


TINY = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 1000,
}  # fmt: skip
TINY_LENGTH = 192


def maker(name: str, anchors: int, args: argparse.Namespace) -> Callable[[], Callable[[], None]]:
    """What builds the step of this one."""
    tiny, data, shape = args.tiny, documents(), drafter_shape()
    if tiny:
        mask = TINY["vocab_size"] - 1
        data = documents(2, TINY_LENGTH)
        for row in data.rows:
            row.input_ids[:] %= mask
        shape = drafter_shape(
            hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2, head_dim=16,
            vocab_size=TINY["vocab_size"], mask_token_id=mask,
        )  # fmt: skip
    states, head = tensors(
        shape.context_width, shape.hidden_size, shape.vocab_size, int(data.lengths.sum())
    )
    who, _, attention = name.partition(" ")
    if who == OURS:
        return functools.partial(OurStep, data, states, head, anchors, attention, shape)
    changes: dict[str, Any] = TINY | {"attention": "sdpa"} if tiny else {}
    changes |= {"masks_once": True} if name == "speculators" and args.peer_masks_once else {}
    return functools.partial(PEERS[name], data, states, head, anchors, **changes)


def measure(name: str, anchors: int, args: argparse.Namespace) -> str:
    """A row of the table."""
    tokens = 2 * TINY_LENGTH if args.tiny else DOCUMENTS * LENGTH
    try:
        step = maker(name, anchors, args)()
        result = timed(step, args.steps)
    except torch.OutOfMemoryError as error:
        return table_row(name, anchors, f"out of memory: {str(error)[:80]}")
    if args.profile:
        profile(step, f"{name}, {anchors} anchors")
    graphs = f", {result.graphs} graphs" if result.graphs else ""
    late = f" ({result.recompiled} graphs compiled meanwhile)" if result.recompiled else ""
    return table_row(
        name, anchors, f"{result.step_s * 1e3:.0f} ms{late}",
        f"{tokens / result.step_s:,.0f} tok/s", f"{result.peak_gib:.1f} GiB",
        f"{result.first_s:.1f} s{graphs}",
    )  # fmt: skip


def measure_apart(name: str, anchors: int, args: argparse.Namespace) -> str:
    """The same of a peer, in a process of its own that may hang or fail."""
    words = ["--one", name, "--anchors", str(anchors), "--steps", str(args.steps)]
    words += [f"--peer-limit={args.peer_limit}"]
    flags = ("tiny", "profile", "peer_masks_once")
    words += ["--" + flag.replace("_", "-") for flag in flags if getattr(args, flag)]
    found = bounded([sys.executable, __file__, *words], args.peer_limit)
    *before, row = found.output.splitlines() or [""]
    print("\n".join(before), end="\n" if before else "", flush=True)
    if found.problem:
        sys.stderr.write(f"{name}, {anchors} anchors, {found.problem}:\n{found.said[-6000:]}\n")
        return table_row(name, anchors, found.problem)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--anchors", type=int, nargs="+", default=[512, 128])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--attention", nargs="+", default=["auto"])
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, help="these as well; without names all of them"
    )
    parser.add_argument(
        "--peer-limit", type=float, default=240, metavar="SECONDS",
        help="for a peer at one number of anchors, its start included (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--peer-masks-once", action="store_true",
        help="speculators' masks, which can take minutes to compile, are made once, uncompiled",
    )  # fmt: skip
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="toy shapes, to see that it works")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        watched(args.peer_limit)
        for anchors in args.anchors:
            print(measure(args.one, anchors, args), flush=True)
        return
    print(machine(), flush=True)
    if not args.no_check and not args.tiny:
        began = time.perf_counter()
        check()
        print(f"checked in {time.perf_counter() - began:.1f} s", flush=True)
    peers = [] if args.peers is None else args.peers or list(PEERS)
    table = [table_row("who", "anchors", "step", "speed", "peak", "first step")]
    print(table[0], flush=True)
    for anchors in args.anchors:
        for attention in args.attention:
            table.append(measure(f"{OURS} {attention}", anchors, args))
            print(table[-1], flush=True)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        for name in peers:
            table.append(measure_apart(name, anchors, args))
            print(table[-1], flush=True)
    if peers:
        print("\n".join(("", *table)), flush=True)


if __name__ == "__main__":
    main()
