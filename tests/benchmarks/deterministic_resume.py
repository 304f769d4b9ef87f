"""`dflash train --deterministic`: run twice, and interrupted at other steps each time, bit for bit.

    PYTHONPATH=. python3 tests/benchmarks/deterministic_resume.py --target models/smollm2 --work DIR

For a GPU, where kernels may add up in any order; on a CPU the suite tests it. Any target with a
vocabulary above 128.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.support.tiny_runs import losses, write_set

STEPS, SAVE_EVERY = 30, 10
STOPS = (3, 17)
STOPPED = 75


def options(target: Path, work: Path, name: str) -> Path:
    values = {
        "target": str(target), "data": str(work / "set"), "out": str(work / name), "layers": 2,
        "block_size": 8, "anchors_per_doc": 16, "batch_docs": 16, "micro_batches": 2,
        "steps": STEPS, "save_every": SAVE_EVERY, "lr": 1e-3, "colocated": True,
        "deterministic": True, "eval_docs": 8, "eval_prompts": 2, "eval_tokens": 16,
    }  # fmt: skip
    path = work / f"{name}.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def run(config: Path, stop_at: int | None = None) -> int:
    """Exit code, 0 or 75; SIGTERM once this step has been told. Ends all when training fails."""
    out = config.with_suffix("")
    with config.with_suffix(".err").open("ab") as err:
        argv = [sys.executable, "-m", "dflash", "train", "--config", str(config)]
        process = subprocess.Popen(argv, stdout=err, stderr=err)
    while process.poll() is None:
        told = max(losses(out), default=0) if (out / "metrics.jsonl").is_file() else 0
        if stop_at is not None and told >= stop_at:
            process.send_signal(signal.SIGTERM)
            stop_at = None
        time.sleep(0.02)
    if process.returncode not in (0, STOPPED):
        said = config.with_suffix(".err").read_text(encoding="utf-8").strip()
        sys.exit(f"training {config} ended with exit code {process.returncode}:\n{said[-2000:]}")
    return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    write_set(args.work / "set", seed=0, count=200, heldout=8)
    configs = {name: options(args.target, args.work, name) for name in ("whole", "again", "cut")}
    codes = [run(configs["whole"]), run(configs["again"])]
    codes += [run(configs["cut"], stop) for stop in (*STOPS, None)]
    print(f"exit codes {codes}")
    last = f"step-{STEPS:06d}/model.safetensors"
    whole, good = load_file(args.work / "whole" / last), True
    for name in ("again", "cut"):
        found = load_file(args.work / name / last)
        same = all(torch.equal(found[key], tensor) for key, tensor in whole.items())
        alike = losses(args.work / name) == losses(args.work / "whole")
        print(f"{name}: weights bit for bit {same}, losses {alike}")
        good = good and same and alike
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
