"""The state of torch's random generators on every drafter rank, for a checkpoint and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from dflash.feed import peer_errors


def rng_of_all(group: Any) -> list[dict[str, torch.Tensor]]:
    """By number of the drafter rank; every one of them takes part."""
    own = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        own["cuda"] = torch.cuda.get_rng_state()
    if group is None:
        return [own]
    found: list[Any] = [None] * dist.get_world_size(group)
    with peer_errors("another drafter rank"):
        dist.all_gather_object(found, own, group=group)
    return found


def set_rng(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
