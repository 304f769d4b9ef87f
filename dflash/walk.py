"""Rounds of greedy drafting, counted without decoding.

Greedy drafting with verification gives the target's own greedy text whatever the drafter, so every
context that can come up is a prefix of that text. One pass drafts after all of its tokens at once;
the rounds are then read off by walking: after each, go on behind the last token that was produced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dflash.losses import logits_of
from dflash.statistics import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dflash.batches import DrafterRows
    from dflash.losses import LossOptions


@torch.no_grad()
def leading_runs(
    out: Tensor, rows: DrafterRows, head: Callable[[Tensor], Tensor], options: LossOptions
) -> Tensor:
    """out [Q,H] (normed) -> [N] how many drafts of each block hold, from its first on."""
    parts = out.split(options.chunk_rows)
    chosen = torch.cat([logits_of(part, head, options).argmax(-1) for part in parts])
    right = (chosen == rows.labels) & rows.supervised
    return right.view(-1, options.block_size)[:, 1:].long().cumprod(-1).sum(-1)


def walk(runs: Sequence[int], *, block_size: int, limit: int) -> list[Round]:
    """The rounds that `decode` would take for a text of `len(runs) + 1` tokens.

    `runs[i]` is the leading run of the block whose anchor is the text's token i. The first token
    came with the prompt. The text ended by itself, or because it has `limit` tokens.
    """
    rounds, place, last = [], 0, len(runs)
    while place < last:
        left = limit - (place + 1)
        proposed = min(block_size - 1, left - 1)  # the last token is the target's own
        accepted = min(runs[place], proposed)
        produced = min(accepted + 1, last - place)
        rounds.append(Round(proposed=proposed, accepted=accepted, produced=produced))
        place += produced
    return rounds
