"""A sample of the vocabulary to compute the loss over, where the whole head costs too much.

On a CPU with a small drafter the frozen head is three quarters of a step. Tokens that the training
data holds compete exactly; of all others a fresh few do, their logits raised by the logarithm of
how many each stands for, so that the sum over the vocabulary is right on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.shards import TokenizedSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The rows of the head that take part in one micro-batch."""

    ids: Tensor  # [C] ascending
    correction: Tensor  # [C] to add to their logits

    def place(self, labels: Tensor) -> Tensor:
        """Labels as places among the candidates; only meaningful for labels that are among them."""
        return torch.searchsorted(self.ids, labels).clamp_max(len(self.ids) - 1)


class SampledHead:
    """Draws candidates; the same ones for a micro-batch whoever asks."""

    def __init__(self, data: TokenizedSet, *, vocab_size: int, size: int, seed: int) -> None:
        self.vocab_size, self.size, self.seed = vocab_size, size, seed
        counts = np.zeros(vocab_size, dtype=np.int64)
        for i in range(len(data)):
            row = data.row(i)
            counts += np.bincount(row.input_ids[row.loss_mask > 0], minlength=vocab_size)
        common = np.argsort(-counts, kind="stable")[:size]
        self.common = common[counts[common] > 0]

    def draw(self, number: int, labels: Tensor) -> Candidates:
        """Candidates of micro-batch `number`, whose supervised labels are given."""
        exact = np.union1d(self.common, labels.cpu().numpy())
        others = np.setdiff1d(np.arange(self.vocab_size), exact, assume_unique=True)
        count = min(len(others), max(1, self.size // 4))
        generator = np.random.default_rng((self.seed, 1, number))
        drawn = generator.choice(others, size=count, replace=False) if count else others
        ids = np.concatenate([exact, drawn])
        weight = math.log(len(others) / count) if count else 0.0
        correction = np.concatenate([np.zeros(len(exact)), np.full(len(drawn), weight)])
        order = np.argsort(ids)
        return Candidates(
            ids=torch.from_numpy(ids[order]),
            correction=torch.from_numpy(correction[order].astype(np.float32)),
        )
