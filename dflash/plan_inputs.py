"""What a plan is made from: the work, the GPUs and links by name, and the assumptions.

Owns: the table of GPUs and links, the fractions of their peaks that are assumed, and the file of
measurements that replaces them.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from dflash.config import DrafterConfig
    from dflash.plan_shapes import TargetShape

GIB = 2**30
TARGET_FRACTION = 0.43
"""Plain Transformers forward of a 27B hybrid on one H200: 425 of 989 TFLOP/s, measured."""
DRAFTER_FRACTION = 0.42
"""A public trainer's step on one H200: 490 TFLOP in 1,188 ms, measured (the fastest: 0.66)."""
LINK_FRACTION = 0.8
DTYPE_BYTES = {"bfloat16": 2, "float8": 1}
MEASUREMENTS = ("target_tflops", "drafter_tflops", "link_gb_s")
BATCH = ("batch_docs", "most_tokens", "most_blocks", "micro_batches")
"""The batch that was measured: a plan with the file has the same one unless told otherwise."""
COUNTED = ("devices", "memory_gib", "batch_docs", "micro_batches")
CALIBRATED = ("device", "devices", "memory_gib", "optimiser_s", "target_gib", "drafter_gib", *BATCH)
"""What `dflash train --calibrate` notes besides."""
MAY_HOLD = f"It may hold numbers above zero named {', '.join(MEASUREMENTS)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Data-sheet figures: dense bf16 peak with fp32 accumulation, memory as the driver shows it."""

    name: str
    tflops: float
    memory_gib: float
    nvlink_gb_s: float
    """To all peers together, one direction; 0: none."""


GPUS: Mapping[str, Gpu] = {
    "a100": Gpu(name="A100 SXM 80 GB", tflops=312, memory_gib=80.0, nvlink_gb_s=300),
    "l40s": Gpu(name="L40S", tflops=362, memory_gib=45.0, nvlink_gb_s=0),
    "rtx-pro-6000": Gpu(name="RTX PRO 6000 Blackwell", tflops=504, memory_gib=95.6, nvlink_gb_s=0),
    "h100": Gpu(name="H100 SXM", tflops=989, memory_gib=79.6, nvlink_gb_s=450),
    "h200": Gpu(name="H200 SXM", tflops=989, memory_gib=139.8, nvlink_gb_s=450),
    "b200": Gpu(name="B200 SXM", tflops=2250, memory_gib=179.1, nvlink_gb_s=900),
}
LINKS: Mapping[str, float] = {
    "nvlink": 0.0,  # the GPU's own figure
    "pcie5": 64.0,
    "pcie4": 32.0,
    "tcp100": 12.5,
    "tcp10": 1.25,
}
"""GB/s in one direction at the data sheet's rate; TCP by its line rate in Gbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The models, the set and the batch: what has to be computed, on whatever machine."""

    target: TargetShape
    drafter: DrafterConfig
    documents: int
    mean_tokens: float
    anchors: int
    max_length: int
    batch_docs: float
    micro_batches: int
    ring: int = 2
    head_chunk_rows: int = 4096
    epochs: float = 1.0
    most_tokens: int | None = None
    """Of a micro-batch, where packing has a budget; else of so many documents of full length."""
    most_blocks: int | None = None

    def __post_init__(self) -> None:
        for name in ("documents", "mean_tokens", "anchors", "max_length", "batch_docs",
                     "micro_batches", "ring", "head_chunk_rows", "epochs"):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                words = name.replace("_", " ")
                raise DflashError(
                    f"{words} must be a number above zero, found {getattr(self, name):g}",
                    "A plan of no work says nothing; name the set with --data, or its numbers.",
                )

    @property
    def tokens(self) -> float:
        """Of one document in training: longer ones are cut. By the mean: an upper bound."""
        return min(self.mean_tokens, float(self.max_length))

    @property
    def batch_tokens(self) -> float:
        """Of the largest micro-batch: what memory has to hold."""
        return self.most_tokens or self.batch_docs * self.max_length

    @property
    def batch_blocks(self) -> float:
        return self.most_blocks or self.batch_docs * self.anchors

    @property
    def target_layers(self) -> int:
        """Layers that a target rank runs: it stops after the last tap."""
        return max(self.drafter.target_layer_ids) + 1

    def state_bytes(self, itemsize: int = 2) -> int:
        """Of one captured token: all taps side by side, K x H numbers."""
        return self.drafter.context_width * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """GPUs of one kind, the link between them, and the rates that are reached."""

    gpu: Gpu
    count: int
    link: str
    target_tflops: float
    drafter_tflops: float
    link_gb_s: float
    assumptions: tuple[str, ...]
    optimiser_s: float = 0.0
    """Of a step, besides its micro-batches; without a measurement it is in the drafter's rate."""


def machine(
    name: str,
    count: int,
    *,
    link: str = "auto",
    target_fraction: float = TARGET_FRACTION,
    drafter_fraction: float = DRAFTER_FRACTION,
    measured: Mapping[str, Any] | None = None,
) -> Machine:
    """Peak times fraction, each replaced by what was measured; says which is which."""
    if count < 1:
        raise UsageError(f"--gpus is {count}", "A plan needs at least one GPU.")
    for flag, value in (("target", target_fraction), ("drafter", drafter_fraction)):
        if not 0 < value <= 1:
            raise UsageError(
                f"--{flag}-fraction is {value:g}", "It is the reached part of the peak: 0 to 1."
            )
    gpu = GPUS[pick(name, GPUS, "GPU")]
    chosen = ("nvlink" if gpu.nvlink_gb_s else "pcie5") if link == "auto" else link
    speed = link_speed(gpu, pick(chosen, LINKS, "link"))
    if not speed:
        raise UsageError(f"{gpu.name} has no NVLink", "Choose --link pcie5, pcie4 or tcp100.")
    given = measured or {}
    if "memory_gib" in given:  # a whole calibration: of the machine that it was made on
        gpu, chosen = replace(gpu, name=given["device"], memory_gib=given["memory_gib"]), "link"
    target = given.get("target_tflops", gpu.tflops * target_fraction)
    drafter = given.get("drafter_tflops", gpu.tflops * drafter_fraction)
    rate = given.get("link_gb_s", speed)

    def basis(key: str, fraction: float, of: float, unit: str) -> str:
        return "measured" if key in given else f"assumed: {fraction:.0%} of {of:,.4g} {unit}"

    return Machine(
        gpu=gpu,
        count=count,
        link=chosen,
        target_tflops=target,
        drafter_tflops=drafter,
        link_gb_s=rate,
        assumptions=(
            (
                f"{gpu.name}: target at {_rate(target)} TFLOP/s "
                f"({basis('target_tflops', target_fraction, gpu.tflops, 'peak bf16')}), "
                f"drafter at {_rate(drafter)} "
                f"({basis('drafter_tflops', drafter_fraction, gpu.tflops, 'peak bf16')})"
            ),
            (
                f"{chosen}: {rate:,.4g} GB/s one way "
                f"({basis('link_gb_s', LINK_FRACTION, speed / LINK_FRACTION, 'GB/s')})"
            ),
        ),
        optimiser_s=given.get("optimiser_s", 0.0),
    )


def _rate(tflops: float) -> str:
    return f"{tflops:,.0f}" if tflops >= 10 else f"{tflops:.2g}"


def link_speed(gpu: Gpu, link: str) -> float:
    """GB/s that a copy reaches in one direction; 0 when the GPU has no such link."""
    return LINK_FRACTION * (gpu.nvlink_gb_s if link == "nvlink" else LINKS[link])


def pick(name: str, known: Iterable[str], what: str) -> str:
    """The known name that is meant, whatever its case; else an error with the nearest."""
    names = list(known)
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    if wanted in names:
        return wanted
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.5)
    ask = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(f"unknown {what} {name!r}", f"{ask}Known: {', '.join(names)}.")


def read_measurements(path: Path) -> dict[str, Any]:
    """A JSON file with any of `target_tflops`, `drafter_tflops`, `link_gb_s`, or a calibration."""
    found = read_json(path, "measurements", {"device?": str}, hint=MAY_HOLD)
    unknown = sorted(set(found) - set(MEASUREMENTS) - set(CALIBRATED))
    numbers = {k: v for k, v in found.items() if k != "device"}
    bad = [k for k, v in numbers.items() if isinstance(v, bool) or not isinstance(v, int | float)]
    bad += [k for k in numbers if k not in bad and not 0 <= found[k] < math.inf]
    bad += [k for k in (*MEASUREMENTS, *COUNTED) if k in found and k not in bad and not found[k]]
    bad += [k for k in ("device",) if "memory_gib" in found and k not in found]
    if unknown or bad or not found:
        wrong = ", ".join(unknown or bad) or "nothing"
        raise InputInvalid(
            f"{path} holds {wrong}, which is no measurement",
            MAY_HOLD,
        )
    return {key: value if key == "device" else float(value) for key, value in found.items()}


def set_statistics(folder: Path, split: str) -> tuple[int, float]:
    """Documents and mean tokens of one split, from the manifest of a tokenized set."""
    path = folder / "manifest.json" if folder.is_dir() else folder
    found = read_json(path, "tokenized set's manifest", {"splits?": {"*": dict}})
    splits = found.get("splits") or {}
    if split not in splits:
        names = ", ".join(splits) or "none"
        raise InputInvalid(
            f"{path} describes no split {split!r} (it has: {names})",
            "Name a folder that `dflash tokenize` wrote, and one of its splits with --split.",
        )
    rows, tokens = splits[split].get("rows"), splits[split].get("tokens")
    if not isinstance(rows, int) or not isinstance(tokens, int) or rows < 1 or tokens < 1:
        raise InputInvalid(
            f"split {split!r} in {path} has {rows} documents and {tokens} tokens",
            "There is nothing to plan; look at what `dflash audit` says of the set.",
        )
    return rows, tokens / rows
