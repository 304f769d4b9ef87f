"""The whole job, target and drafter together: splits of the GPUs at hand, and the seed's design.

    PYTHONPATH=. python3 tests/benchmarks/online_training.py [--gpus 4] [--anchors 512 128]
        [--splits calibration colocated 3+1 2+2 seed seed-plain] [--tiny]

Each split is a run of `dflash train --random-weights` at Qwen3.6-27B's shapes. Its speed is that of
the later half of its steps, when what was made in advance at the start is used up. It is held
against three figures: the bound of the roles' rates in that run; that of each role's rate alone, as
`calibration` measured it before; and what `dflash plan topology` expects of those. `--gpu-memory`
tries a smaller card.

The seed's design is one process with the target on one half of the GPUs and drafters on the other,
left to CUDA to overlap: `seed` with our target and drafter step, `seed-plain` with those of
Transformers and SpecForge. Their gradients are not summed, which favours it. What a run saves at
its end is as large as the drafter: TMPDIR on a fast disk spares minutes. `--tiny` runs everything
on a CPU with toy shapes, to see that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dflash.calibrate import machine_of, work_of
from dflash.plan_topology import splits
from dflash.shards import Row, write_shard
from dflash.train_config import TrainConfig
from tests.benchmarks.drafter_step import OurStep
from tests.benchmarks.limited import bounded
from tests.benchmarks.peer_steps import specforge_step
from tests.benchmarks.shapes import (
    BLOCK,
    LENGTH,
    PROMPT,
    TAPS,
    documents,
    drafter_shape,
    gemm_ceiling,
    machine,
    table_row,
)  # fmt: skip
from tests.benchmarks.target_taps import target_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

TINY = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 300,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip
SMALL = 8
"""Anchors a document where the shapes are toys."""


SPLITS = ("calibration", "colocated", "fixed", "seed", "seed-plain")
"""`fixed`: every M+N there is."""
HEADER = (
    "split", "anchors", "speed", "of its own rates", "of the rates alone", "of the plan",
    "target, drafter tok/s", "waits", "first step", "memory", "in all",
)  # fmt: skip


def write_random_set(folder: Path, count: int, length: int, vocab: int) -> None:
    """A tokenized set of documents of one length."""
    draw = np.random.default_rng(0)
    mask = (np.arange(length) >= min(PROMPT, length // 4)).astype(np.uint8)
    ids = draw.integers(0, vocab, (count, length), dtype=np.int32)
    rows = [Row(id=str(i), input_ids=line, loss_mask=mask) for i, line in enumerate(ids)]
    entry = write_shard(folder / "train" / "shard-00000.arrow", rows)
    split = {"shards": [entry], "rows": count, "tokens": count * length}
    manifest = {"format": "dflash-tokenized/1", "splits": {"train": split}}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def write_inputs(
    inputs: Path, gpus: int, steps: int, *, layers: int = 64, tiny: bool = False
) -> None:
    """A set and a target's config.json."""
    (inputs / "target").mkdir()
    if tiny:
        write_random_set(inputs / "set", 40, 64, 250)
        (inputs / "target" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    else:
        write_random_set(inputs / "set", 8 * gpus * steps, LENGTH, 200_000)
        target_folder(inputs / "target", layers)


def options_of(inputs: Path, anchors: int, steps: int, *, tiny: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "target": str(inputs / "target" / "config.json"), "data": str(inputs / "set"),
        "random_weights": True, "steps": steps, "anchors_per_doc": anchors, "block_size": BLOCK,
        "max_length": LENGTH, "save_every": 10**6, "eval_docs": 0, "eval_prompts": 0,
        "init": "random", "schedule": "constant",
    }  # fmt: skip
    if tiny:
        return made | {"layers": 1, "num_taps": 3, "block_size": 4, "batch_docs": 2}
    shape = {"taps": list(TAPS), "mask_token": 248070, "sliding_window": 2048}
    return made | shape | {"batch_tokens": 4 * LENGTH, "batch_blocks": 4 * anchors}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """tok/s of a split by the rates that calibration measured."""

    alone: float
    """Of each role's own rate: links and sums of gradients cost nothing."""
    planned: float


def calibrate(
    options: dict[str, Any], gpus: int, limit_s: float
) -> dict[tuple[int, int], Expected]:
    """What `dflash train --calibrate-only` measures, and expects of (targets, drafters)."""
    with tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "run.json", Path(folder) / "out"
        extra = {"devices": gpus, "micro_batches": gpus, "out": str(out)}
        config.write_text(json.dumps(options | extra), encoding="utf-8")
        argv = [sys.executable, "-m", "dflash", "train", "--config", str(config)]
        done = bounded([*argv, "--calibrate-only"], limit_s)
        print((done.output + done.said[-2500:]).strip(), flush=True)
        if done.problem:
            return {}
        made = TrainConfig.from_json(options | extra)
        work, here = work_of(made), machine_of(out / "calibration.json", made)
        found = {}
        for split in splits(work, here):
            free = replace(here, link_gb_s=float("inf"))
            alone = next(
                one.docs_per_s
                for one in splits(work, free)
                if (one.targets, one.drafters) == (split.targets, split.drafters)
            )
            found[split.targets, split.drafters] = Expected(
                alone=alone * work.tokens, planned=split.docs_per_s * work.tokens
            )
        return found


def run_split(
    name: str,
    options: dict[str, Any],
    split: dict[str, Any],
    expected: Expected | None,
    limit_s: float,
) -> str:
    """One run of `dflash train`, its rates as a row."""
    with tempfile.TemporaryDirectory() as folder:
        out, config = Path(folder) / "out", Path(folder) / "run.json"
        config.write_text(json.dumps(options | split | {"out": str(out)}), encoding="utf-8")
        began = time.perf_counter()
        done = bounded([sys.executable, "-m", "dflash", "train", "--config", str(config)], limit_s)
        if done.problem:
            sys.stderr.write(f"{name}, {done.problem}:\n{done.said[-12000:]}\n")
            return table_row(name, options["anchors_per_doc"], done.problem)
        seconds = time.perf_counter() - began
        rates = json.loads((out / "train.json").read_text(encoding="utf-8"))["rates"]
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = [e["metrics"] for e in map(json.loads, lines) if "step_s" in e.get("metrics", {})]
    later = steps[len(steps) // 2 :]
    speed = sum(s["tok_s"] * s["step_s"] for s in later) / sum(s["step_s"] for s in later)
    return table_row(
        name, options["anchors_per_doc"], f"{speed:,.0f} tok/s",
        f"{speed / rates['bound_tok_s']:.1%} of {rates['bound_tok_s']:,.0f} ({rates['slower']})",
        *(
            f"{speed / figure:.1%} of {figure:,.0f}" if figure else "-"
            for figure in ((expected.alone, expected.planned) if expected else (0, 0))
        ),
        f"{rates['target_tok_s']:,.0f}, {rates['drafter_tok_s']:,.0f}",
        f"target {rates['target_waits']:.1%}, drafter {rates['drafter_waits']:.1%}",
        f"{steps[0]['step_s']:.1f} s", f"{rates['memory_gib']:.1f} GiB",
        f"{seconds:.0f} s",
    )  # fmt: skip


class SeedDesign:
    """One process that drives target and drafter GPUs by turns."""

    def __init__(self, folder: Path, anchors: int, gpus: int, *, plain: bool, tiny: bool) -> None:
        from dflash.random_target import random_target
        from dflash.target import TargetTaps

        self.plain, self.tiny, half = plain, tiny, max(1, gpus // 2)
        cuda = torch.cuda.is_available()
        devices = [f"cuda:{i}" if cuda else "cpu" for i in range(2 * half)]
        self.firsts, self.seconds = devices[:half], devices[half:]
        self.kind = torch.bfloat16 if cuda else torch.float32
        self.data = documents(*((2, 160) if tiny else (4, LENGTH)))
        layers = [1, 3, 6] if tiny else list(TAPS)
        self.targets = [
            TargetTaps(random_target(folder, self.kind, one), layers) for one in self.firsts
        ]
        for row in self.data.rows:
            row.input_ids[:] %= self.targets[0].vocab_size - 1
        self.ids = torch.stack([torch.from_numpy(row.input_ids).long() for row in self.data.rows])
        self.drafters = [self._drafter(i, anchors) for i in range(half)]

    def _drafter(self, i: int, anchors: int) -> Callable[[], None]:
        device = self.seconds[i]
        shape = tiny_shape() if self.tiny else drafter_shape()
        states = self._states(i).to(device)
        head = torch.randn(shape.vocab_size, shape.hidden_size, device=device) * 0.02
        with on(device):
            if self.plain:
                return specforge_step(self.data, states, head.to(self.kind), anchors)
            return OurStep(
                self.data, states, head.to(self.kind), anchors, shape=shape, dtype=self.kind
            )

    def _states(self, i: int) -> torch.Tensor:
        ids = self.ids.to(self.firsts[i])
        with on(self.firsts[i]), torch.no_grad():
            if self.plain:
                made = self.targets[i]._by_hooks(ids, torch.ones_like(ids, dtype=torch.bool))
                return torch.cat(tuple(made), -1).flatten(0, 1)
            return self.targets[i].states(ids, torch.full((len(ids),), ids.shape[1])).flatten(0, 1)

    def iterate(self, *, late: bool) -> None:
        """A step of each drafter, and the states for the next one: sent before it, or behind it."""
        made = [self._states(i) for i in range(len(self.firsts))]
        send = zip(made, self.seconds, strict=True)
        ahead = [] if late else [one.to(device, non_blocking=True) for one, device in send]
        for device, step in zip(self.seconds, self.drafters, strict=True):
            with on(device):
                step()
        ahead = ahead or [one.to(device, non_blocking=True) for one, device in send]
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        for step, states in zip(self.drafters, ahead, strict=True):
            if isinstance(step, OurStep):  # the other keeps its first: states cost it the same
                step.states = states

    def speed(self, steps: int, *, late: bool) -> float:
        """tok/s of the median step."""
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            self.iterate(late=late)
            times.append(time.perf_counter() - began)
        return len(self.firsts) * self.ids.numel() / float(np.median(times[2:] or times))


def on(device: str) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device != "cpu" else contextlib.nullcontext()


def tiny_shape() -> Any:
    return drafter_shape(
        num_layers=1, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2,
        head_dim=16, vocab_size=300, mask_token_id=299, taps=(1, 3, 6),
    )  # fmt: skip


def machines() -> str:
    """This machine, and a square product on each of its GPUs."""
    rates = []
    for i in range(torch.cuda.device_count()):
        with torch.cuda.device(i):
            rates.append(round(gemm_ceiling()))
    return f"{machine()} each GPU's TFLOP/s: {rates}" if len(rates) > 1 else machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--anchors", type=int, nargs="+", default=[512, 128])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=64, help="of the target")
    parser.add_argument(
        "--splits", nargs="+", default=["calibration", "colocated", "fixed", "seed"],
        help=f"of {', '.join(SPLITS)}, or M+N (default: all but seed-plain)",
    )  # fmt: skip
    parser.add_argument("--limit", type=float, default=300, help="seconds of one run")
    parser.add_argument("--gpu-memory", type=float, help="GiB of each GPU, as on a smaller card")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    for name in args.splits:
        if name not in SPLITS and not re.fullmatch("[1-9][0-9]*[+][1-9][0-9]*", name):
            parser.error(f"--splits: {name} is none of {', '.join(SPLITS)}, nor M+N")
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name)
        write_inputs(inputs, args.gpus, args.steps, layers=args.layers, tiny=args.tiny)
        print(machines(), table_row(*HEADER), sep="\n", flush=True)
        for anchors in args.anchors:
            measure(args, inputs, min(anchors, SMALL) if args.tiny else anchors)


def measure(args: argparse.Namespace, inputs: Path, anchors: int) -> None:
    """The rows of one number of anchors."""
    options = options_of(inputs, anchors, args.steps, tiny=args.tiny)
    options["gpu_memory"] = args.gpu_memory
    expected = {}
    names = [*args.splits]
    if "fixed" in names:
        at = names.index("fixed")
        names[at : at + 1] = [f"{args.gpus - n}+{n}" for n in range(1, args.gpus)]
    for name in names:
        if name == "calibration":
            expected = calibrate(options, args.gpus, args.limit)
            continue
        if name.startswith("seed"):
            row = seed_rows(args, inputs / "target", anchors, plain=name == "seed-plain")
        else:
            split = split_options(name, args.gpus)
            known = expected.get((split.get("targets", 0), split["drafters"]))
            row = run_split(name, options, split, known, args.limit)
        print(row, flush=True)


def seed_rows(args: argparse.Namespace, target: Path, anchors: int, *, plain: bool) -> str:
    made = SeedDesign(target, anchors, args.gpus, plain=plain, tiny=args.tiny)
    half = len(made.firsts)
    name = f"one process, {half}+{half}, {'plain parts' if plain else 'our parts'}"
    steps = min(args.steps, 8)
    rows = [
        table_row(f"{name}{how}", anchors, f"{made.speed(steps, late=late):,.0f} tok/s")
        for how, late in (("", False), (", states sent behind the step", True))
    ]
    return "\n".join(rows)


def split_options(name: str, gpus: int) -> dict[str, Any]:
    """Of `dflash train`, for `colocated` or M+N; a micro-batch for each GPU in a step of any."""
    if name == "colocated":
        return {"colocated": True, "drafters": gpus, "micro_batches": gpus}
    targets, drafters = map(int, name.split("+"))
    return {
        "colocated": False, "targets": targets, "drafters": drafters,
        "micro_batches": -(-gpus // drafters) * drafters,
    }  # fmt: skip


if __name__ == "__main__":
    main()
