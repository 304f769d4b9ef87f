"""What a training run is made of, decided from its options and inputs alike on every rank.

Owns: shape and mask token of the drafter, the sequence of data, the number of steps, which rank
has which device and number types.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import fingerprints
from dflash.config import VOCABULARY, DrafterConfig, choose_mask_token, text_part
from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json
from dflash.schedule import warmup_steps
from dflash.train_config import HELD_OUT

if TYPE_CHECKING:
    import torch

    from dflash.batches import Batches
    from dflash.feed import Schedule
    from dflash.random_target import RandomWeights
    from dflash.ranks import Role
    from dflash.shards import TokenizedSet
    from dflash.target_weights import TargetWeights
    from dflash.train_config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about a run that follows from its options and inputs; equal on every rank."""

    shape: DrafterConfig
    weights: TargetWeights | RandomWeights
    data: TokenizedSet
    batches: Batches
    total: int
    """Optimiser steps of the whole run."""
    fingerprint: str
    """Of the training data: a resume on other data is refused."""
    target: str
    """The fingerprint of the target: likewise."""
    warmup: int
    notes: tuple[str, ...] = ()
    """What a resumed run has changed, or a start from a drafter has decided."""


def plan(config: TrainConfig) -> Plan:
    """Open the inputs and decide shape and length of the run."""
    from dflash.batches import Batches
    from dflash.checkpoint import latest_checkpoint
    from dflash.resume import check_resume, check_start
    from dflash.shards import TokenizedSet

    weights = target_weights(config)
    data = TokenizedSet(config.data, config.split)
    if config.eval_docs and config.eval_split != HELD_OUT and not config.random_weights:
        TokenizedSet(config.data, config.eval_split)  # named, so it has to be there
    fingerprints.check_tokenizer(config, data.manifest)
    _check_ids(config, weights, data)
    newest = latest_checkpoint(Path(config.out))
    source = newest or (Path(config.init_from) if config.init_from else None)
    if source is not None:
        shape = DrafterConfig.read(source)
    else:
        shape = DrafterConfig.from_target_config(
            weights.config,
            num_layers=config.layers,
            block_size=config.block_size,
            taps=config.taps,
            num_taps=config.num_taps,
            sliding_window=config.sliding_window,
            mask_token_id=_mask_token(config, weights, data),
        )
    batches = Batches(
        data,
        batch_docs=config.batch_docs,
        batch_tokens=config.batch_tokens,
        batch_blocks=config.batch_blocks,
        anchors_per_doc=config.anchors_per_doc,
        block_size=shape.block_size,
        mask_token_id=shape.mask_token_id,
        max_length=config.max_length,
        seed=config.seed,
    )
    total = total_steps(config, batches)
    made = Plan(
        shape=shape,
        weights=weights,
        data=data,
        batches=batches,
        total=total,
        fingerprint=fingerprints.of_data(config),
        target=fingerprints.of_target(config.target),
        warmup=warmup_steps(total, config),
    )
    if newest is None:
        return replace(made, notes=(check_start(source, config, shape),)) if source else made
    found = check_resume(
        newest, config, shape, total=total, data=made.fingerprint, target=made.target,
        dtype=drafter_dtype(config),
    )  # fmt: skip
    return replace(made, warmup=found.warmup, notes=found.notes)


def drafter_dtype(config: TrainConfig) -> str:
    """What `--dtype auto` comes to here."""
    import torch

    automatic = "bfloat16" if torch.cuda.is_available() else "float32"
    return automatic if config.dtype == "auto" else config.dtype


def target_weights(config: TrainConfig) -> TargetWeights | RandomWeights:
    """Single tensors of the target, for those who need no more than its ends."""
    from dflash.random_target import RandomWeights
    from dflash.target_weights import TargetWeights

    return RandomWeights(config.target) if config.random_weights else TargetWeights(config.target)


def frozen_target(config: TrainConfig, types: Types) -> Any:
    """The whole target on this rank's device."""
    from dflash.random_target import random_target
    from dflash.target import load_target

    load = random_target if config.random_weights else load_target
    return load(config.target, types.target, types.device)


def total_steps(config: TrainConfig, batches: Batches) -> int:
    """The smallest of the limits given; whole epochs when none is."""
    limits = []
    if config.steps is not None:
        limits.append(config.steps)
    if config.tokens is not None:
        limits.append(int(config.tokens / (batches.mean_tokens * config.micro_batches)))
        if limits[-1] < 1:
            raise DflashError(
                f"--tokens {config.tokens:,} are less than one step, which takes about "
                f"{batches.mean_tokens * config.micro_batches:,.0f}.",
                "Raise --tokens, or lower --micro-batches or --batch-tokens.",
            )
    if not limits:
        limits.append(batches.in_epochs(config.epochs) // config.micro_batches)
    if min(limits) < 1:
        raise DflashError(
            f"{config.data} has too few samples: a pass over it makes {batches.per_epoch} "
            f"micro-batches of {batches.mean_tokens:,.0f} tokens, one step takes "
            f"{config.micro_batches}.",
            "Add data, or lower --micro-batches or --batch-tokens, or ask for --steps.",
        )
    return min(limits)


def _mask_token(
    config: TrainConfig, weights: TargetWeights | RandomWeights, data: TokenizedSet
) -> int:
    text = text_part(weights.config)
    vocab = int(text["vocab_size"])
    special = [text.get(f"{name}_token_id") for name in ("eos", "bos", "pad", "unk")]
    taken = [i for s in special if s is not None for i in (s if isinstance(s, list) else [s])]
    if config.random_weights and config.mask_token is None:
        return vocab - 1
    if config.mask_token is None:
        tokenizer = read_json(
            Path(config.target) / "tokenizer.json", "target's tokenizer", VOCABULARY,
            hint="Fetch the target again.",
        )  # fmt: skip
        chosen = choose_mask_token(vocab, tokenizer, taken)
        if not _occurs(data, chosen):
            return chosen
        seen = {int(t) for i in range(len(data)) for t in set(data.row(i).input_ids.tolist())}
        return choose_mask_token(vocab, tokenizer, taken, in_data=sorted(seen))
    if config.mask_token in taken or _occurs(data, config.mask_token):
        raise DflashError(
            f"Token {config.mask_token} cannot be the mask: it ends or pads texts, or occurs in "
            f"{config.data}.",
            "Name an embedding row that never occurs, or leave --mask-token out.",
        )
    return config.mask_token


def _check_ids(
    config: TrainConfig, weights: TargetWeights | RandomWeights, data: TokenizedSet
) -> None:
    rows = int(text_part(weights.config)["vocab_size"])
    for i in range(len(data)):
        ids = data.row(i).input_ids
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
            raise InputInvalid(
                f"Document {i} of {config.data} has token {int(ids.max())}; the target's embedding "
                f"has {rows} rows.",
                "The set was tokenized for another target.",
            )


def _occurs(data: TokenizedSet, token: int) -> bool:
    return any(bool((data.row(i).input_ids == token).any()) for i in range(len(data)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """Number types and place of one rank's tensors."""

    device: torch.device
    target: torch.dtype
    drafter: torch.dtype
    wire: torch.dtype

    @classmethod
    def of(cls, config: TrainConfig) -> Types:
        import torch

        cuda = torch.cuda.is_available()
        place = int(os.environ.get("LOCAL_RANK", "0"))
        if cuda and place >= torch.cuda.device_count():
            raise DflashError(
                f"Process {place + 1} of this host needs a GPU of its own; there are "
                f"{torch.cuda.device_count()}.",
                "Lower --targets or --drafters, or choose --colocated; `dflash plan topology` "
                "compares the splits.",
            )
        device = torch.device("cuda", place) if cuda else None
        automatic = torch.bfloat16 if cuda else torch.float32
        named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": automatic}
        if device is not None:
            torch.cuda.set_device(device)
        if device is not None and config.gpu_memory is not None:
            whole = torch.cuda.get_device_properties(device).total_memory
            share = min(1.0, config.gpu_memory * 2**30 / whole)
            torch.cuda.set_per_process_memory_fraction(share, device)
        return cls(
            device=device or torch.device("cpu"),
            target=automatic,
            drafter=named[drafter_dtype(config)],
            wire=named[config.wire_dtype],
        )


def first_step(config: TrainConfig) -> int:
    """Where the run goes on; the name of the newest checkpoint says it."""
    from dflash.checkpoint import latest_checkpoint

    newest = latest_checkpoint(Path(config.out))
    return int(newest.name.removeprefix("step-")) if newest else 0


def schedule_of(config: TrainConfig, role: Role, made: Plan, step: int) -> Schedule:
    from dflash.feed import Schedule

    return Schedule(
        targets=max(1, role.targets),
        drafters=role.drafters,
        ring=config.ring,
        first=step * config.micro_batches,
        end=made.total * config.micro_batches,
    )
