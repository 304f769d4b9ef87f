"""What the GPU of the first drafter rank does in two steps of a whole job, by kernel.

    PYTHONPATH=. python3 tests/benchmarks/profiled_training.py [--anchors 128] [--split 3+1]

The same run as in online_training.py, under torchrun. Beside the kernels: the part of the time in
which none ran, and that in which nothing but the exchange between GPUs ran.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import torch

from dflash.train_config import TrainConfig
from tests.benchmarks.limited import bounded
from tests.benchmarks.online_training import SMALL, options_of, split_options, write_inputs

FIRST, STEPS = 8, 2
RANK = "PROFILED_RANK_CONFIG"
EXCHANGE = "nccl"
PRODUCTS = ("gemm", "nvjet", "cutlass", "xmma", "cublas")


def main() -> int:
    if RANK in os.environ:
        return rank(Path(os.environ[RANK]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--anchors", type=int, default=128)
    parser.add_argument("--split", default="colocated", help="colocated or M+N")
    parser.add_argument("--limit", type=float, default=150, help="seconds")
    parser.add_argument("--tiny", action="store_true", help="toy shapes on a CPU")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        inputs, steps = Path(name), FIRST + STEPS + 2
        write_inputs(inputs, args.gpus, steps, tiny=args.tiny)
        anchors = min(args.anchors, SMALL) if args.tiny else args.anchors
        options = options_of(inputs, anchors, steps, tiny=args.tiny)
        options |= split_options(args.split, args.gpus) | {"out": str(inputs / "out")}
        config = inputs / "run.json"
        config.write_text(json.dumps(options), encoding="utf-8")
        os.environ |= {RANK: str(config), "OMP_NUM_THREADS": "1", "NCCL_MAX_P2P_NCHANNELS": "4"}
        argv = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        argv += [f"--nproc-per-node={args.gpus}", "-m", "tests.benchmarks.profiled_training"]
        found = bounded(argv, args.limit)
        print(f"{args.split}, {anchors} anchors\n{found.output}", flush=True)
        if found.problem:
            sys.stderr.write(f"{found.problem}:\n{found.said[-12000:]}\n")
            return 1
    return 0


def rank(config: Path) -> int:
    """One rank of the run, which looks at itself if it is the one that leads."""
    from dflash.drafter_run import DrafterRun
    from dflash.train import whole_process

    plain, watch = DrafterRun._one_step, Watch()

    def step(run: DrafterRun) -> None:
        if run.role.leads and run.step == FIRST:
            watch.start()
        plain(run)
        if run.role.leads and run.step == FIRST + STEPS:
            watch.stop()

    DrafterRun._one_step = step  # type: ignore[method-assign]
    return whole_process(TrainConfig.from_json(json.loads(config.read_text(encoding="utf-8"))))


class Watch:
    """The profiler, and what it saw as text."""

    def __init__(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self.profiler = profile(activities=kinds)

    def start(self) -> None:
        self._wait()
        self.profiler.start()

    def stop(self) -> None:
        self._wait()
        self.profiler.stop()
        kernels = [
            (e.time_range.start / 1e3, e.time_range.end / 1e3, e.name)
            for e in self.profiler.events()
            if e.device_type.name == "CUDA"
        ]
        print(summary(kernels) if kernels else "no kernels: no GPU", flush=True)

    def _wait(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def summary(kernels: list[tuple[float, float, str]]) -> str:
    """Milliseconds a step; `kernels` as (start, end, name) in ms."""
    whole = max(k[1] for k in kernels) - min(k[0] for k in kernels)
    busy, own = covered(kernels), covered([k for k in kernels if EXCHANGE not in k[2].lower()])
    groups: dict[str, list[float]] = {}
    for start, end, name in kernels:
        product = any(word in name.lower() for word in PRODUCTS)
        key = "matrix products" if product else name[:80]
        at = groups.setdefault(key, [0.0, 0])
        at[0] += end - start
        at[1] += 1
    lines = [
        (
            f"a step: {whole / STEPS:.1f} ms; no kernel ran {(whole - busy) / STEPS:.1f} ms, "
            f"nothing but the exchange {(busy - own) / STEPS:.1f} ms"
        ),
        *(
            f"{ms / STEPS:9.2f} ms {count // STEPS:5d} x {name}"
            for name, (ms, count) in sorted(groups.items(), key=lambda pair: -pair[1][0])[:20]
        ),
    ]
    return "\n".join(lines)


def covered(kernels: list[tuple[float, float, str]]) -> float:
    """Length of the union of their times."""
    total, reached = 0.0, float("-inf")
    for start, end, _ in sorted(kernels):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


if __name__ == "__main__":
    sys.exit(main())
