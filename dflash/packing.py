"""Which documents share a micro-batch, and which of them one forward of the target. Pure; no torch.

A micro-batch has a budget of tokens and one of blocks; what the drafter computes grows with the
blocks, what travels and what the target computes with the tokens. Documents are taken from windows
of a shuffled order, each time the longest that still fits: neighbours in length come together,
which the target likes, and a short one fills what is left, which leaves hardly anything empty.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 2048
"""Documents looked at together: enough to fill micro-batches, few enough to stay shuffled."""
NEAR = 32
"""How many shorter documents are tried for one with few enough blocks."""
FORWARD_TOKENS = 256
"""What one more forward costs the target, in tokens: it is worth less padding than that."""


def pack(
    order: np.ndarray,
    lengths: np.ndarray,
    blocks: np.ndarray,
    *,
    tokens: int,
    most_blocks: int,
    window: int = WINDOW,
) -> list[tuple[int, ...]]:
    """Documents of `order` in micro-batches of at most so many tokens and blocks, each once."""
    made: list[tuple[int, ...]] = []
    left: tuple[int, ...] = ()
    for start in range(0, len(order), window):
        documents = np.concatenate([np.array(left, dtype=np.int64), order[start : start + window]])
        found = _pack_window(documents, lengths, blocks, tokens, most_blocks)
        last = start + window >= len(order)
        # The last one of a window is what happened to remain: the next window fills it up.
        left = () if last else found.pop()
        made += found
    return made


def _pack_window(
    documents: np.ndarray, lengths: np.ndarray, blocks: np.ndarray, tokens: int, most_blocks: int
) -> list[tuple[int, ...]]:
    by_length = documents[np.argsort(lengths[documents], kind="stable")]
    ids: list[int] = by_length.tolist()
    sizes: list[int] = lengths[by_length].tolist()
    wants: list[int] = blocks[by_length].tolist()
    made = []
    while ids:
        taken: list[int] = []
        room, free = tokens, most_blocks
        place: int | None = len(ids) - 1
        while place is not None:
            taken.append(ids.pop(place))
            room -= sizes.pop(place)
            free -= wants.pop(place)
            place = _longest(sizes, wants, room, free)
        made.append(tuple(taken))
    return made


def _longest(sizes: list[int], wants: list[int], room: int, free: int) -> int | None:
    """Where the longest stands that fits both; None when there is none nearby."""
    place = bisect.bisect_right(sizes, room) - 1
    for candidate in range(place, max(-1, place - NEAR), -1):
        if wants[candidate] <= free:
            return candidate
    # One of at most `free` tokens has no more blocks than that.
    place = bisect.bisect_right(sizes, min(room, free)) - 1
    return place if place >= 0 else None


def fill(made: Sequence[Sequence[int]], sizes: np.ndarray, budget: int) -> float:
    """How full of a budget the micro-batches are."""
    return float(sum(int(sizes[list(one)].sum()) for one in made) / (len(made) * budget))


def forwards(lengths: Sequence[int]) -> list[list[int]]:
    """Rows of a micro-batch by the forward they share: padding against one forward more.

    A target takes one document a row, padded to the longest; the cheapest cut of the rows in order
    of length is found by looking at all of them.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    best: list[tuple[int, int]] = [(0, 0)]  # cost of the first n rows, where their last part begins
    for end in range(1, len(order) + 1):
        best.append(
            min(
                (
                    best[start][0] + (end - start) * lengths[order[start]] + FORWARD_TOKENS,
                    start,
                )
                for start in range(end)
            )
        )
    parts, end = [], len(order)
    while end:
        start = best[end][1]
        parts.append(sorted(order[start:end]))
        end = start
    return parts[::-1]
