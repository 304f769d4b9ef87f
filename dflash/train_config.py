"""One training run as a frozen record; no torch here.

Owns: every option of `dflash train`, which of them fit together, and which may not change between a
checkpoint and the run that resumes it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from dflash.errors import DflashError

if TYPE_CHECKING:
    from collections.abc import Mapping


HELD_OUT = "heldout"


def ring_buffers(ring: int, targets: int, drafters: int) -> int:
    """Buffers in which a drafter receives: enough for each target to work `ring` ahead.

    Where several targets feed one drafter, fewer would let some of them wait for a free one.
    """
    return max(ring, -(-ring * targets // drafters))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One training run. `RESUME_CONTRACT` names what a resumed run may not change."""

    target: str
    data: str
    out: str
    split: str = "train"
    layers: int = 5
    block_size: int = 16
    random_weights: bool = False
    """The target is only its `config.json`: to measure speed and memory, not to learn."""
    taps: tuple[int, ...] | None = None
    num_taps: int | None = None
    sliding_window: int | None = None
    mask_token: int | None = None
    init: str = "target"
    """`target`: as the target's last layers, reading evenly scaled taps. `random`: as elsewhere."""
    init_from: str | None = None
    """A z-lab checkpoint to start the weights from."""
    anchors_per_doc: int = 512
    max_length: int = 4096
    """Longer documents are cut here, so that a ring buffer's size is known."""
    batch_tokens: int = 8192
    """Tokens in one micro-batch, at most; documents are packed to fill it."""
    batch_blocks: int = 2048
    """Blocks in one micro-batch, at most: the drafter's memory and time grow with them."""
    batch_docs: int | None = None
    """So many documents in one micro-batch instead, however long."""
    micro_batches: int = 1
    """Micro-batches in one optimiser step, over all drafter ranks."""
    steps: int | None = None
    tokens: int | None = None
    """Stop after about this many training tokens, context included; the smaller limit counts."""
    minutes: float | None = None
    """Stop, with a checkpoint, after this much wall time; the schedule still follows the steps."""
    epochs: float = 1.0
    """Used when neither steps nor tokens is given."""
    lr: float = 6e-4
    min_lr_ratio: float = 0.1
    schedule: str = "wsd"
    warmup: float = 0.04
    decay: float = 0.2
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    nonfinite: str = "skip"
    """A gradient that is not finite: `skip` the step (and stop after ten), or `stop` at once."""
    loss: str = "dpace"
    """`dpace`, or `ce` with exponential decay over slots, which came to 5 % fewer tokens a round
    after the same steps on the same data (docs/performance.md)."""
    gamma: float | None = None
    dpace_alpha: float = 0.5
    head_chunk_rows: int = 4096
    head_sample: int = 0
    """0: the loss sees the whole vocabulary. N: the N most frequent training tokens, the batch's
    own and N/4 random others, corrected for; for CPUs, where the head is most of a step."""
    dtype: str = "auto"
    wire_dtype: str = "auto"
    attention: str = "auto"
    targets: int = 1
    drafters: int = 1
    colocated: bool = False
    """Every drafter rank runs the target too; `targets` then means nothing."""
    backend: str = "auto"
    shard_optimizer: bool = False
    """Each drafter rank keeps masters and moments of its part only; checkpoints stay whole."""
    reduce_dtype: str = "float32"
    """Of gradients between drafter ranks; they add up in fp32 either way."""
    ring: int = 2
    """Micro-batches that a target may work ahead of its drafter."""
    devices: int | None = None
    """For a calibration to divide; else all GPUs there are."""
    eval_split: str = HELD_OUT
    """Documents that are never trained on; where the set has none, nothing is evaluated."""
    eval_docs: int = 16
    eval_prompts: int = 4
    """Held-out prompts that the target continues greedily, for the true acceptance length."""
    eval_tokens: int = 64
    save_every: int = 500
    keep: int = 3
    upload: str | None = None
    """s3://BUCKET/PREFIX for checkpoints, in the background."""
    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    short_lived_only: bool = False
    """Refuse keys without a session token: this machine is not ours."""
    seed: int = 0
    gpu_memory: float | None = None
    """GiB that a rank may take of its GPU: others use the rest, or a smaller card is tried out."""
    timeout_s: float = 600.0
    deterministic: bool = False
    """The same bits on every run, on a GPU too; slower."""

    def __post_init__(self) -> None:
        for name, problem in _train_problems(self):
            raise DflashError(f"Cannot train with {name}: {problem}", "Change that option.")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        names = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(values) - names)
        if unknown:
            raise DflashError(
                f"Unknown training option {', '.join(unknown)}.",
                f"Known: {', '.join(sorted(names))}.",
            )
        lacks = [name for name in ("target", "data", "out") if name not in values]
        if lacks:
            raise DflashError(f"The training options lack {', '.join(lacks)}.", "Add them.")
        fixed = dict(values)
        for name in ("taps", "betas"):
            if isinstance(fixed.get(name), list):
                fixed[name] = tuple(fixed[name])
        return cls(**fixed)

    def to_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def decay_gamma(self, block_size: int) -> float:
        """7 for blocks of 16, 5 for 10, 4 for 8 (the paper's values), 2.5 below."""
        if self.gamma is not None:
            return self.gamma
        return next(
            g for size, g in ((16, 7.0), (10, 5.0), (8, 4.0), (0, 2.5)) if block_size >= size
        )


RESUME_CONTRACT = (
    "split", "layers", "block_size", "sliding_window", "anchors_per_doc", "max_length",
    "batch_tokens", "batch_blocks", "batch_docs",
    "micro_batches", "lr", "min_lr_ratio", "schedule", "warmup", "decay",
    "weight_decay", "betas", "clip", "loss", "gamma", "dpace_alpha",
    "head_sample", "init", "wire_dtype", "random_weights", "seed",
)  # fmt: skip
"""Changing one would continue a different run under the same name. Topology may change. `dtype` is
compared as it came out, as `auto` means another on another machine (dflash/resume.py)."""


AT_LEAST_ONE = (
    "layers", "anchors_per_doc", "max_length", "batch_tokens", "batch_blocks", "batch_docs",
    "micro_batches", "targets", "drafters", "ring", "save_every", "keep", "steps", "tokens",
    "devices", "num_taps", "sliding_window", "head_chunk_rows", "eval_tokens",
)  # fmt: skip
ABOVE_ZERO = ("lr", "clip", "gamma", "epochs", "minutes", "gpu_memory", "timeout_s")
FROM_ZERO = ("weight_decay", "head_sample", "eval_docs", "eval_prompts", "seed")
PARTS = ("min_lr_ratio", "warmup", "decay", "dpace_alpha")
"""Of a whole: 0 to 1."""


def contract_changes(saved: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """What the resuming run asks for and the checkpoint does not allow, in words."""
    now = config.to_json()
    return [
        f"{name}: {saved[name]!r} in the checkpoint, {now[name]!r} now"
        for name in RESUME_CONTRACT
        if name in saved and saved[name] != now[name]
    ]


CHOICES = {
    "schedule": ("wsd", "cosine", "constant"),
    "loss": ("ce", "dpace"),
    "init": ("target", "random"),
    "nonfinite": ("skip", "stop"),
    "attention": ("auto", "eager", "sdpa", "flex", "fused"),
    "backend": ("auto", "gloo", "nccl"),
    "dtype": ("auto", "float32", "bfloat16"),
    "wire_dtype": ("auto", "float32", "bfloat16"),
    "reduce_dtype": ("float32", "bfloat16"),
    "addressing": ("auto", "path", "virtual"),
}


def _train_problems(config: TrainConfig) -> list[tuple[str, str]]:
    found = _wrong_types(config)
    if found:
        return found
    found += [
        (name, f"{getattr(config, name)!r} is not one of {', '.join(allowed)}.")
        for name, allowed in CHOICES.items()
        if getattr(config, name) not in allowed
    ]
    for names, fits, problem in (
        (AT_LEAST_ONE, lambda x: x >= 1, "is below 1"),
        (ABOVE_ZERO, lambda x: 0 < x < math.inf, "is not a number above zero"),
        (FROM_ZERO, lambda x: 0 <= x < math.inf, "is below zero, or no number"),
        (PARTS, lambda x: 0 <= x <= 1, "is not between 0 and 1"),
    ):
        given = [(name, getattr(config, name)) for name in names]
        found += [(n, f"{x} {problem}.") for n, x in given if x is not None and not fits(x)]
    if len(config.betas) != 2 or not all(0 <= beta < 1 for beta in config.betas):
        found.append(("betas", f"{config.betas} are not two numbers from 0 to below 1."))
    if config.upload is not None and not re.match("s3://[^/]", config.upload):
        found.append(("upload", f"{config.upload!r} is no s3://BUCKET/PREFIX."))
    if config.drafters > 0 and config.micro_batches % config.drafters:
        problem = (
            f"{config.micro_batches} do not split evenly over {config.drafters} drafter ranks."
        )
        found.append(("micro_batches", problem))
    return found


KINDS: Mapping[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
}


def _wrong_types(config: TrainConfig) -> list[tuple[str, str]]:
    """A recipe or a file may hold anything: YAML reads 6e-4 as a text, for one."""
    found = []
    for field in dataclasses.fields(config):
        value, kind = getattr(config, field.name), str(field.type).removesuffix(" | None")
        if value is None and field.type != kind:
            continue
        many = kind.startswith("tuple[")
        accepted, what = KINDS[kind.removeprefix("tuple[").split(",")[0]]
        parts = value if many and isinstance(value, tuple) else (value,)
        fits = all(
            isinstance(x, accepted) and isinstance(x, bool) == (kind == "bool") for x in parts
        )
        if not fits or isinstance(value, tuple) != many:
            wanted = f"a list, each {what}" if many else what
            found.append((field.name, f"{value!r} is not {wanted}{_in_yaml(value)}."))
    return found


def _in_yaml(value: object) -> str:
    try:
        return f" (in YAML: {float(value)!r})" if isinstance(value, str) else ""
    except ValueError:
        return ""
