"""The whole job, target and drafter together: splits of the GPUs at hand, and the seed's design.

    PYTHONPATH=. python3 tests/benchmarks/online_training.py [--gpus 2] [--anchors 512 128]
        [--splits calibration colocated fixed seed] [--gpu-memory 92] [--tiny]

Each split is a run of `dflash train --random-weights` at Qwen3.6-27B's shapes, its figures those of
the run's own summary: the bound is what the roles' rates allow that were measured in that run. The
seed's design is one process with the target on one half of the GPUs and drafters on the other, left
to CUDA to overlap. What a run saves at its end is as large as the drafter: TMPDIR on a fast disk
spares minutes. `--tiny` runs everything on a CPU with toy shapes, to see that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash.shards import Row, write_shard
from tests.benchmarks.drafter_step import OurStep
from tests.benchmarks.shapes import BLOCK, LENGTH, PROMPT, TAPS, documents, drafter_shape, table_row
from tests.benchmarks.target_taps import target_folder

TINY = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 300,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip


SPLITS = ("calibration", "colocated", "fixed", "seed")


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


def calibrate(options: dict[str, Any], gpus: int) -> None:
    """What `dflash train --calibrate-only` measures and expects of each split."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "run.json"
        extra = {"devices": gpus, "micro_batches": gpus, "out": str(Path(folder) / "out")}
        config.write_text(json.dumps(options | extra), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "dflash", "train", "--config", str(config), "--calibrate-only"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        print((done.stdout + done.stderr[-2000:]).strip(), flush=True)


def run_split(name: str, options: dict[str, Any], split: dict[str, Any]) -> None:
    """One run of `dflash train`, its rates as a row."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        config = Path(folder) / "run.json"
        config.write_text(json.dumps(options | split | {"out": str(out)}), encoding="utf-8")
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "dflash", "train", "--config", str(config)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            print(
                table_row(name, options["anchors_per_doc"], done.stderr.strip()[-200:]), flush=True
            )
            return
        seconds = time.perf_counter() - began
        rates = json.loads((out / "train.json").read_text(encoding="utf-8"))["rates"]
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        first = next(e for e in map(json.loads, lines) if e.get("metrics", {}).get("step_s"))
        print(
            table_row(
                name, options["anchors_per_doc"], f"{rates['tok_s']:,.0f} tok/s",
                f"{rates['of_bound']:.1%} of {rates['bound_tok_s']:,.0f}",
                f"{rates['target_tok_s']:,.0f}", f"{rates['drafter_tok_s']:,.0f}",
                f"{rates['slower']} slower; waits {rates['target_waits']:.1%} target, "
                f"{rates['drafter_waits']:.1%} drafter",
                f"{first['metrics']['step_s']:.1f} s", f"{rates['memory_gib']:.1f} GiB",
                f"{seconds:.0f} s in all",
            ),
            flush=True,
        )  # fmt: skip


def seed_design(anchors: int, steps: int, folder: Path, *, tiny: bool) -> float:
    """tok/s of one process that drives target and drafter GPUs by turns."""
    from dflash.random_target import random_target
    from dflash.target import TargetTaps

    cuda = torch.cuda.is_available()
    first, second = ("cuda:0", "cuda:1") if cuda else ("cpu", "cpu")
    kind = torch.bfloat16 if cuda else torch.float32
    length, count = (160, 2) if tiny else (LENGTH, 4)
    taps = TargetTaps(random_target(folder, kind, first), [1, 3, 6] if tiny else TAPS)
    shape = drafter_shape()
    if tiny:
        shape = drafter_shape(
            num_layers=1, hidden_size=64, intermediate_size=96, num_heads=4, num_kv_heads=2,
            head_dim=16, vocab_size=300, mask_token_id=299, taps=(1, 3, 6),
        )  # fmt: skip
    data = documents(count, length)
    for row in data.rows:
        row.input_ids[:] %= taps.vocab_size - 1
    head = (torch.randn(taps.vocab_size, shape.hidden_size, device=second) * 0.02).to(kind)
    ids = torch.stack([torch.from_numpy(row.input_ids).long() for row in data.rows]).to(first)
    lengths = torch.full((count,), length)
    states = taps.states(ids, lengths).flatten(0, 1).to(second)
    step = OurStep(data, states, head, anchors, shape=shape, dtype=kind)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        ahead = taps.states(ids, lengths).flatten(0, 1).to(second, non_blocking=True)
        with torch.cuda.device(second) if cuda else contextlib.nullcontext():
            step()
        step.states = ahead
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return count * length / float(np.median(times[2:] or times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--anchors", type=int, nargs="+", default=[512, 128])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=64, help="of the target")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=SPLITS)
    parser.add_argument("--gpu-memory", type=float, help="GiB of each GPU, as on a smaller card")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name)
        (inputs / "target").mkdir()
        if args.tiny:
            write_random_set(inputs / "set", 40, 64, 250)
            (inputs / "target" / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
        else:
            write_random_set(inputs / "set", 8 * args.gpus * args.steps, LENGTH, 200_000)
            target_folder(inputs / "target", args.layers)
        print(
            table_row(
                "split",
                "anchors",
                "speed",
                "bound",
                "target",
                "drafter",
                "",
                "first step",
                "memory",
                "",
            )
        )
        for anchors in args.anchors:
            anchors = min(anchors, 8) if args.tiny else anchors
            options = options_of(inputs, anchors, args.steps, tiny=args.tiny)
            options["gpu_memory"] = args.gpu_memory
            if "calibration" in args.splits:
                calibrate(options, args.gpus)
            if "colocated" in args.splits:
                together = {"colocated": True, "drafters": args.gpus, "micro_batches": args.gpus}
                run_split(f"colocated × {args.gpus}", options, together)
            for drafters in range(1, args.gpus) if "fixed" in args.splits else ():
                split = {"targets": args.gpus - drafters, "drafters": drafters}
                split["micro_batches"] = drafters
                run_split(f"{split['targets']} + {drafters}", options, split)
            if "seed" in args.splits:
                speed = seed_design(anchors, args.steps, inputs / "target", tiny=args.tiny)
                print(table_row("one process, 1 + 1", anchors, f"{speed:,.0f} tok/s"), flush=True)


if __name__ == "__main__":
    main()
