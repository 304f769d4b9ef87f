"""One training of the quality run, by `dflash train`'s own code, under a loss that is named.

    PYTHONPATH=. python3 -m tests.benchmarks.quality_runs RUN.json

`ce` and `dpace` are ours. SpecForge's loss equals `ce` and speculators' equals `dpace` with the
target's own choices as labels, on any logits: tests/oracles holds them together. What then still
differs is where a drafter starts, so the peers are run both ways.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import dflash.batches
from tests.benchmarks.quality_text import CHOICES

if TYPE_CHECKING:
    from dflash.batches import MicroBatch

VARIANTS: dict[str, dict[str, Any]] = {
    "ce": {"loss": "ce"},
    "dpace": {"loss": "dpace"},
    "specforge": {"loss": "ce", "init": "random"},
    "speculators": {"loss": "dpace", "init": "random", "choices": True},
    "dpace-choices": {"loss": "dpace", "choices": True},
    "ce-choices": {"loss": "ce", "choices": True},
}
"""`choices`: labels are what the target would have said, given the data's tokens before them."""


class ChosenLabels(dflash.batches.Batches):
    """Blocks of the data with the target's choices for labels, as speculators trains."""

    def _document(self, batch: MicroBatch, i: int, most: int | None) -> dict[str, np.ndarray]:
        columns = super()._document(batch, i, most)
        if not batch.rows[i].id.startswith("train-"):
            return columns
        chosen = choices_of(str(self.data.path))[batch.documents[i]]
        place = np.minimum(columns["pos"], len(batch.rows[i].input_ids) - 1)
        return columns | {"labels": chosen[place].astype(np.int64)}


_known: dict[str, list[np.ndarray]] = {}


def choices_of(folder: str) -> list[np.ndarray]:
    if folder not in _known:
        lengths = dflash.shards.TokenizedSet(folder, "train").lengths
        with np.load(Path(folder) / CHOICES) as kept:
            _known[folder] = np.split(kept["tokens"], np.cumsum(lengths)[:-1])
    return _known[folder]


def main() -> int:
    from dflash.train import train
    from dflash.train_config import TrainConfig

    options = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if options.pop("choices", False):
        dflash.batches.Batches = ChosenLabels  # type: ignore[misc]
    train(TrainConfig.from_json(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
