"""Which positions of a document blocks start after; numpy only.

Sampled per document, never per packed row: a long row would starve its short documents. The draw
depends on the seed, the epoch and the document alone, so batching and topology cannot change it.
"""

from __future__ import annotations

import numpy as np


def eligible_anchors(loss_mask: np.ndarray) -> np.ndarray:
    """Positions a of one document whose own and next token are both supervised.

    The anchor token is known when drafting; the next one is the first that a block must get right.
    """
    mask = loss_mask.astype(bool)
    return np.flatnonzero(mask[:-1] & mask[1:])


def sample_anchors(
    loss_mask: np.ndarray, *, count: int, seed: int, epoch: int, document: int
) -> np.ndarray:
    """At most `count` distinct anchors of a document, ascending: unsorted, flex is 3x slower."""
    found = eligible_anchors(loss_mask)
    if len(found) > count:
        draw = np.random.default_rng((seed, epoch, document))
        found = np.sort(draw.choice(found, size=count, replace=False))
    return found


def slot_mask(loss_mask: np.ndarray, anchors: np.ndarray, block_size: int) -> np.ndarray:
    """[n,B]: which slots of each block carry a label.

    Cumulative: nothing counts after the first unsupervised slot, for such a draft could not be
    accepted before the turn ends. The end of the document ends the block too.
    """
    slots = anchors[:, None] + np.arange(block_size)  # [n,B]
    inside = slots < len(loss_mask)
    mask = np.where(inside, loss_mask[np.minimum(slots, len(loss_mask) - 1)], 0).astype(bool)
    mask[:, 0] = True  # the anchor itself is no draft, but must not end the run
    mask = np.logical_and.accumulate(mask, axis=1)
    mask[:, 0] = False
    return mask
