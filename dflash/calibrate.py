"""Rates of this machine, measured in seconds before a run: target, drafter, link; and the split.

In a process of its own, whose memory is free again before the ranks start. Weights are random: a
rate depends on shapes only, so nothing large is read. `dflash plan topology --calibrate` takes the
file that this writes and computes the same.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json, write_json
from dflash.gpus import kind
from dflash.plan_inputs import GIB, Work, machine, read_measurements
from dflash.plan_report import duration
from dflash.plan_shapes import TargetShape, drafter_flops
from dflash.plan_topology import plan_topology, splits
from dflash.train_config import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from dflash.batches import Batches, MicroBatch
    from dflash.feed import Delivery
    from dflash.plan_inputs import Machine
    from dflash.plan_topology import Split
    from dflash.run_plan import Plan, Types

Made = TypeVar("Made")

FILE = "calibration.json"
STEPS = 3
SAMPLE = 4
"""Micro-batches looked at; all have the same size or nearly so."""
ANY_GPU = "h200"
"""Its row of the table is read and then replaced by what was measured."""


def calibrate(config: TrainConfig) -> tuple[TrainConfig, str]:
    """Measure, choose a split for the devices there are, and say why.

    Returns the configuration with that split, and the text for a person.
    """
    out = Path(config.out) / FILE
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "run.json"
        write_json(wanted, config.to_json())
        started = time.monotonic()
        _measure_apart(wanted, out)
        seconds = time.monotonic() - started
    work, here = work_of(config), machine_of(out, config)
    chosen = choose(config, work, here)
    report = plan_topology(work, here)
    expected = f"{chosen.docs_per_s * work.tokens:,.0f} tok/s"
    epoch = f"{duration(work.documents / chosen.docs_per_s)} an epoch"
    text = (
        f"{report.text()}\nMeasured in {seconds:.0f} s. Chosen: {chosen.name}, limited by "
        f"{chosen.limit}; expected {expected}, {epoch}; {_margin(out, chosen)}."
    )
    split = dataclasses.replace(
        config,
        colocated=not chosen.targets,
        targets=max(1, chosen.targets),
        drafters=chosen.drafters,
    )
    return split, text


def choose(config: TrainConfig, work: Work, here: Machine) -> Split:
    """The fastest split that fits and leaves the batch of a step as it was asked for."""
    fitting = [one for one in splits(work, here) if one.micro_batches == config.micro_batches]
    if not fitting or not fitting[0].fits:
        lack = min((one.too_much for one in splits(work, here)), default=0.0)
        raise DflashError(
            f"No split of {here.count} devices fits: {lack / GIB:,.1f} GiB are missing.",
            "Lower --batch-tokens or --batch-blocks; `dflash plan memory` shows of what.",
        )
    return fitting[0]


def work_of(config: TrainConfig) -> Work:
    """What `dflash plan` would make of the same options and data."""
    from dflash.run_plan import plan

    made = plan(config)
    lengths = made.data.lengths
    mean = min(float(lengths.mean()), float(config.max_length))
    return Work(
        target=TargetShape.from_config(made.weights.config, config.target),
        drafter=made.shape,
        documents=len(lengths),
        mean_tokens=float(lengths.mean()),
        anchors=config.anchors_per_doc,
        max_length=config.max_length,
        batch_docs=made.batches.mean_tokens / mean,
        micro_batches=config.micro_batches,
        ring=config.ring,
        head_chunk_rows=config.head_chunk_rows,
        epochs=config.epochs,
        most_tokens=made.batches.max_tokens,
        most_blocks=None if config.batch_docs else config.batch_blocks,
    )


def machine_of(measured: Path, config: TrainConfig) -> Machine:
    found = read_measurements(measured)
    return machine(ANY_GPU, config.devices or int(found["devices"]), measured=found)


def _margin(measured: Path, chosen: Split) -> str:
    found = read_json(measured, "calibration")
    if not found["target_gib"]:
        return "memory was not measured (no GPU)"
    needed = {"target": found["target_gib"], "drafter": found["drafter_gib"]}
    if not chosen.targets:
        needed = {"each GPU": found["target_gib"] + found["drafter_gib"]}
    left = {role: found["memory_gib"] - gib for role, gib in needed.items()}
    return "memory left: " + ", ".join(f"{gib:,.1f} GiB ({role})" for role, gib in left.items())


def _measure_apart(wanted: Path, out: Path) -> None:
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    found = subprocess.run(
        [sys.executable, "-m", "dflash.calibrate", str(wanted), str(out)],
        env=plain | {"HF_HUB_OFFLINE": "1"}, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if found.returncode:
        said = found.stderr.strip().splitlines()
        raise DflashError(
            f"Calibration failed: {said[-1] if said else f'exit code {found.returncode}'}",
            "Give the split yourself (--targets M --drafters N, or --colocated).",
        )


# -- in the process of its own


def measure(config: TrainConfig) -> dict[str, Any]:
    """The file's content: rates under the plan's own count of FLOPs, and peaks of memory."""
    import torch

    from dflash.run_plan import Types, plan

    cuda = torch.cuda.is_available()
    alone = cuda and torch.cuda.device_count() == 1
    refuse_unequal([kind(i) for i in range(torch.cuda.device_count())] if cuda else [])
    # The one over gloo forks, so it comes before any thread. One GPU has none to talk to.
    link = {} if alone else {"link_gb_s": _link_by_copy() if cuda else _link_by_gloo()}
    types, made = Types.of(config), plan(config)
    batches = [made.batches.micro_batch(n) for n in range(min(SAMPLE, made.batches.per_epoch))]
    target_s, target_gib = _with_peak(
        types.device, lambda: _measure_target(config, made, types, batches)
    )
    (drafter_s, optimiser_s), drafter_gib = _with_peak(
        types.device, lambda: _measure_drafter(config, made)
    )
    work = work_of(config)
    tokens = sum(batch.tokens for batch in batches)
    target = work.target.forward_flops(work.tokens, layers=work.target_layers, head=False)
    drafter = drafter_flops(work.drafter, work.tokens, work.anchors).total
    return {
        "device": torch.cuda.get_device_name() if cuda else "this CPU",
        "devices": config.devices or (torch.cuda.device_count() if cuda else 1),
        "memory_gib": _memory_gib(types.device),
        "target_tflops": target * tokens / work.tokens / target_s / 1e12,
        "drafter_tflops": drafter * work.batch_docs / drafter_s / 1e12,
        "optimiser_s": optimiser_s,
        **link,
        "target_gib": target_gib,
        "drafter_gib": drafter_gib,
        "batch_docs": work.batch_docs,
        "most_tokens": work.most_tokens,
        "most_blocks": work.most_blocks or 0,
        "micro_batches": work.micro_batches,
    }


def refuse_unequal(kinds: Sequence[str | None]) -> None:
    """One device is measured, so all must be like it."""
    if len(set(kinds)) > 1:
        raise InputInvalid(
            f"the GPUs differ: {', '.join(sorted(map(str, set(kinds))))}; calibration measures one "
            "for all.",
            "Choose equal ones with CUDA_VISIBLE_DEVICES, or give the split yourself: the larger "
            "GPUs to the target (--targets M --drafters N; targets come first).",
        )


def _measure_target(
    config: TrainConfig, made: Plan, types: Types, batches: Sequence[MicroBatch]
) -> float:
    """Seconds for these micro-batches."""
    import torch

    from dflash.feed import packed_states
    from dflash.random_target import random_target
    from dflash.stopwatch import Span, mark
    from dflash.target import TargetTaps

    taps = TargetTaps(
        random_target(config.target, types.target, types.device), made.shape.target_layer_ids
    )

    def forward(batch: MicroBatch) -> None:
        states = torch.empty(batch.tokens, taps.width, dtype=types.wire, device=types.device)
        packed_states(taps, made.batches, batch, states)

    for batch in batches:  # compiles and allocates
        forward(batch)
    begin = mark(types.device)
    for batch in batches:
        forward(batch)
    return Span(begin, mark(types.device)).seconds


def _measure_drafter(config: TrainConfig, made: Plan) -> tuple[float, float]:
    """Seconds of a micro-batch of mean size, and of an optimiser step."""
    from dflash.drafter_run import DrafterRun
    from dflash.ranks import Role
    from dflash.run_plan import Types

    class Rehearsal(DrafterRun):
        """The loop as it is, on random states."""

        def _connect(self) -> None:
            from dflash.random_target import RandomWeights
            from dflash.target_weights import TargetEnds

            ends = TargetEnds(
                RandomWeights(self.config.target), self.types.target, self.types.device
            )
            self.ends, self.feed = ends, _Noise(self.plan.batches, self.types, self.plan.shape)

        def seconds(self, micro_batches: int, steps: int) -> float:
            from dflash.stopwatch import Span, mark

            self.config = dataclasses.replace(self.config, micro_batches=micro_batches)
            self.step, numbers = 0, range(micro_batches * (steps + 1))
            self.loader = Prefetch(numbers, self._load)
            self._one_step()
            begin = mark(self.types.device)
            for _ in range(steps):
                self._one_step()
            found = Span(begin, mark(self.types.device)).seconds / steps
            self.loader.close()
            return found

    from dflash.prefetch import Prefetch

    with tempfile.TemporaryDirectory() as folder:
        alone = dataclasses.replace(
            config, out=folder, drafters=1, colocated=True, micro_batches=1, eval_docs=0,
            upload=None, init="random", init_from=None,
        )  # fmt: skip
        run = Rehearsal(alone, Role.of(alone, 0), made, Types.of(alone))
        run.record.silence()
        run.mark = time.monotonic()
        one, three = run.seconds(1, STEPS), run.seconds(3, STEPS)
        micro = max((three - one) / 2, one / 10)
        return micro, max(0.0, one - micro)


class _Noise:
    """States out of nowhere, made once."""

    def __init__(self, batches: Batches, types: Types, shape: Any) -> None:
        import torch

        size = (batches.max_tokens, shape.context_width)
        self.states: Tensor = torch.randn(size, device=types.device, dtype=types.wire)

    def take(self, batch: MicroBatch) -> Delivery:
        from dflash.feed import Delivery, TargetTimes

        return Delivery(states=self.states[: batch.tokens], wait=None, forward=TargetTimes())

    def release(self, g: int) -> None:
        pass

    def stop(self, consumed: int) -> None:
        pass


def _with_peak(device: torch.device, measure: Callable[[], Made]) -> tuple[Made, float]:
    """What `measure` says, and GiB at its worst moment; all it held is free for the next one."""
    import gc

    import torch

    made = measure()
    if device.type != "cuda":
        return made, 0.0
    peak = torch.cuda.max_memory_reserved(device) / GIB
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return made, peak


def _memory_gib(device: torch.device) -> float:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GIB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB


def _link_by_copy() -> float:
    """GB/s between two GPUs."""
    import torch

    from dflash.stopwatch import Span, mark

    here = torch.empty(2**28, dtype=torch.uint8, device="cuda:0")
    there = torch.empty_like(here, device="cuda:1")
    there.copy_(here)
    torch.cuda.synchronize()
    begin = mark(here.device)
    for _ in range(4):
        there.copy_(here, non_blocking=True)
    return 4 * 2**28 / Span(begin, mark(here.device)).seconds / 1e9


def _link_by_gloo() -> float:
    """GB/s between two processes of this machine."""
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        answer = fork.SimpleQueue()
        pair = [fork.Process(target=_send, args=(rank, folder, answer)) for rank in range(2)]
        for one in pair:
            one.start()
        for one in pair:
            one.join(60)
        if any(one.exitcode != 0 for one in pair):
            raise DflashError("two processes of this machine cannot talk to each other over gloo")
        return float(answer.get())


def _send(rank: int, folder: str, answer: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    data = torch.zeros(2**24, dtype=torch.uint8)
    for _ in range(3):  # the first one connects
        began = time.monotonic()
        if rank:
            dist.recv(data, 0)
        else:
            dist.send(data, 1)
    if rank:
        answer.put(len(data) / (time.monotonic() - began) / 1e9)
    dist.destroy_process_group()


def main() -> int:
    try:
        config = TrainConfig.from_json(read_json(Path(sys.argv[1]), "run's configuration"))
        write_json(Path(sys.argv[2]), measure(config))
    except DflashError as error:
        sys.stderr.write(f"{error.message} {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
