"""`dflash train` on several GPUs: a target rank is killed, then a drafter rank; each run goes on.

    PYTHONPATH=. python3 tests/benchmarks/rank_deaths.py --work DIR [--split 2+2] [--other 3+1]

A run that nothing disturbs is what the others are held against: seconds from the kill to the end of
the job and what it says; after a resume with the same split weights and losses bit for bit
(`--deterministic`); after one with another split losses, step by step, since sums of another order
round otherwise. Exit code 1 when the job outlives a rank by 30 s, gives no reason, or differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from dflash.files import write_json
from tests.support.tiny_runs import losses, row, write_rows
from tests.support.tiny_targets import save_tiny_target

STEPS, SAVE_EVERY, KILL_AT = 40, 10, 14
MASK = 127
"""An id that no document has."""
ENDS_WITHIN_S, RUN_S = 30.0, 150.0
CLOSE = 0.02
"""Relative difference of a loss that another order of bf16 sums may make."""
SHAPE = {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "head_dim": 64,
         "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 8}  # fmt: skip


def make_inputs(work: Path, *, small: bool) -> None:
    """A random target, and documents of a simple language."""
    shape = {} if small else SHAPE
    save_tiny_target(work / "target", scale=2.0, **shape)
    draw = np.random.default_rng(0)
    first, words = (4, 100) if small else (MASK + 1, SHAPE["vocab_size"] - MASK - 1)
    longest = 40 if small else 400
    rows = []
    for i in range(600):
        length = int(draw.integers(longest // 2, longest))
        ids = (int(draw.integers(0, words)) + np.arange(length)) % words  # counting up
        rows.append(row(str(i), ids + first))
    write_rows(work / "set", rows, [])


def config_of(work: Path, out: Path, split: str) -> Path:
    targets, drafters = map(int, split.split("+"))
    values = {
        "target": str(work / "target"), "data": str(work / "set"), "out": str(out), "layers": 2,
        "block_size": 8, "num_taps": 3, "anchors_per_doc": 16, "batch_docs": 8, "micro_batches": 2,
        "steps": STEPS, "save_every": SAVE_EVERY, "lr": 1e-3, "targets": targets,
        "drafters": drafters, "deterministic": True, "keep": 10, "mask_token": MASK, "eval_docs": 0,
        "eval_prompts": 0,
    }  # fmt: skip
    path = out.with_name(f"{out.name}-{split}.json")
    write_json(path, values)
    return path


class Run:
    """One start of `dflash train` in a folder."""

    def __init__(self, work: Path, out: Path, split: str) -> None:
        self.out, self.said = out, out.with_suffix(".err")
        argv = [sys.executable, "-m", "dflash", "train", "--config"]
        with self.said.open("ab") as err:
            self.process = subprocess.Popen(
                [*argv, str(config_of(work, out, split))], stdout=err, stderr=err
            )
        self.deadline = time.monotonic() + RUN_S

    def alive(self) -> bool:
        if time.monotonic() > self.deadline:
            for pid in (*self.ranks().values(), self.process.pid):
                os.kill(pid, signal.SIGABRT)  # with PYTHONFAULTHANDLER each says where it is
            self.process.wait()
        return self.process.poll() is None

    def step(self) -> int:
        there = (self.out / "metrics.jsonl").is_file()
        return max(losses(self.out), default=0) if there else 0

    def ranks(self) -> dict[int, int]:
        """Process by rank."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = {}
        for pid in map(int, children.read_text(encoding="utf-8").split()):
            names = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            rank = next((n for n in names if n.startswith(b"RANK=")), None)
            if rank:
                found[int(rank[5:])] = pid
        return found

    def to_the_end(self) -> None:
        while self.alive():
            time.sleep(0.05)
        if self.process.returncode:
            said = self.said.read_text(encoding="utf-8", errors="replace")
            sys.exit(f"{self.out} ended with {self.process.returncode}:\n{said[-6000:]}")

    def kill(self, rank: int) -> tuple[float, str]:
        """At a step that no checkpoint holds; seconds until the job is over, and its last words."""
        while self.alive() and self.step() < KILL_AT:
            time.sleep(0.02)
        if self.process.poll() is not None:
            self.to_the_end()
            sys.exit(f"{self.out}: over before step {KILL_AT}")
        ranks = self.ranks()
        os.kill(ranks[rank], signal.SIGKILL)
        began = time.monotonic()
        while self.alive():
            time.sleep(0.02)
        seconds = time.monotonic() - began
        left = [pid for pid in ranks.values() if Path(f"/proc/{pid}").exists()]
        lines = self.said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = " ".join(lines[-2:])[:240] + (f"; processes left: {left}" if left else "")
        return seconds, reason


def same_as(whole: Path, out: Path) -> tuple[bool, float]:
    """Weights bit for bit, and the largest relative difference of a loss."""
    last = f"step-{STEPS:06d}/model.safetensors"
    wanted, found = load_file(whole / last), load_file(out / last)
    exact = all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    first, second = losses(whole), losses(out)
    assert sorted(first) == sorted(second) == list(range(1, STEPS + 1)), "a step is missing"
    return exact, max(abs(second[step] / first[step] - 1) for step in first)


def drill(work: Path, split: str, other: str) -> list[dict[str, Any]]:
    began = time.monotonic()
    Run(work, work / "whole", split).to_the_end()
    print(f"whole, {split}: {time.monotonic() - began:.0f} s", flush=True)
    found = []
    for role, rank in (("target", 0), ("drafter", int(split.split("+")[0]))):
        out = work / f"without-a-{role}"
        seconds, reason = Run(work, out, split).kill(rank)
        latest = (out / "latest").read_text(encoding="utf-8").strip()
        elsewhere = work / f"{out.name}-elsewhere"
        shutil.copytree(out, elsewhere)
        for folder, how in ((out, split), (elsewhere, other)):
            began = time.monotonic()
            Run(work, folder, how).to_the_end()
            exact, far = same_as(work / "whole", folder)
            found.append({
                "killed": f"{role} rank {rank}", "ended_after_s": round(seconds, 1),
                "said": reason, "resumed_from": latest, "with": how, "bit_for_bit": exact,
                "largest_loss_difference": far, "took_s": round(time.monotonic() - began, 1),
            })  # fmt: skip
            print(json.dumps(found[-1]), flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--split", default="2+2", metavar="M+N")
    parser.add_argument("--other", default="3+1", metavar="M+N")
    parser.add_argument("--cpu", action="store_true", help="a smaller target")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONFAULTHANDLER"] = "1"
    make_inputs(args.work, small=args.cpu)
    found = drill(args.work, args.split, args.other)
    good = all(
        one["ended_after_s"] < ENDS_WITHIN_S
        and "SIGKILL" in one["said"]
        and "left" not in one["said"]
        and one["largest_loss_difference"] < CLOSE
        and (one["bit_for_bit"] or one["with"] != args.split)
        for one in found
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
