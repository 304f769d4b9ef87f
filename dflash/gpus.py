"""Which GPU each rank has, in words, where they are not all alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash.ranks import Role

GIB = 2**30


def kind(number: int | None) -> str | None:
    """Name and memory of a device of this host; None stands for a CPU."""
    import torch

    if number is None:
        return None
    found = torch.cuda.get_device_properties(number)
    return f"{found.name} ({found.total_memory / GIB:.0f} GiB)"


def unequal(role: Role, kinds: Sequence[str | None]) -> list[str]:
    """What there is to say of the GPUs of all ranks; nothing when they are alike."""
    ranks = [replace(role, rank=rank) for rank in range(len(kinds))]
    if len(set(kinds)) < 2:
        return []
    named = [f"{rank.label} {found or 'no GPU'}" for rank, found in zip(ranks, kinds, strict=True)]
    notes = [f"the GPUs differ: {', '.join(named)}"]
    if len({found for rank, found in zip(ranks, kinds, strict=True) if rank.is_drafter}) > 1:
        notes.append(
            "the drafter ranks have different GPUs: each step takes as long as the slowest of "
            "them, and the batch has to fit the smallest; order them with CUDA_VISIBLE_DEVICES "
            "(targets come first), or leave the odd one out"
        )
    return notes
