"""A tiny target and sets of a simple language, and the options of a run over them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.progress import parse_line
from dflash.run_record import METRICS
from dflash.shards import Row, write_shard
from tests.support.tiny_targets import VOCAB, save_tiny_target

if TYPE_CHECKING:
    from pathlib import Path


def make_inputs(root: Path) -> Path:
    """ROOT/target, ROOT/set of 24 documents, ROOT/held with a held-out part too."""
    save_tiny_target(root / "target", "llama", scale=2.0)
    vocabulary = {str(i): i for i in range(VOCAB - 8)}
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": []}
    (root / "target" / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_set(root / "set", seed=0)
    write_set(root / "held", seed=0, heldout=6)
    return root


def write_set(path: Path, *, seed: int, count: int = 24, heldout: int = 0) -> None:
    draw = np.random.default_rng(seed)
    rows = []
    for i in range(count + heldout):
        length = int(draw.integers(20, 40))
        ids = (int(draw.integers(0, 50)) + np.arange(length)) % 100 + 4  # counting up
        rows.append(row(str(i), ids))
    write_rows(path, rows[:count], rows[count:])


def row(name: str, ids: np.ndarray) -> Row:
    """A document whose first six tokens are the prompt."""
    mask = (np.arange(len(ids)) >= 6).astype(np.uint8)
    return Row(id=name, input_ids=ids.astype(np.int32), loss_mask=mask)


def write_rows(path: Path, train: list[Row], heldout: list[Row]) -> None:
    parts = {"train": train} | ({"heldout": heldout} if heldout else {})
    splits = {
        name: {
            "shards": [write_shard(path / name / "shard-00000.arrow", part)],
            "rows": len(part),
            "tokens": sum(len(row.input_ids) for row in part),
        }
        for name, part in parts.items()
    }
    manifest = {"format": "dflash-tokenized/1", "splits": splits}
    (path / "manifest.json").write_text(json.dumps(manifest))


def options(inputs: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "target": str(inputs / "target"), "data": str(inputs / "set"), "out": str(out),
        "layers": 1, "block_size": 4, "num_taps": 3, "anchors_per_doc": 8, "batch_docs": 3,
        "micro_batches": 2, "steps": 6, "save_every": 3, "lr": 3e-3, "colocated": True, **changes,
    }  # fmt: skip


def events(out: Path) -> list[dict[str, Any]]:
    found = map(parse_line, (out / METRICS).read_text().splitlines())
    return [event for event in found if event]


def losses(out: Path) -> dict[int, float]:
    """Loss by step, the last word on each."""
    return {e["done"]: e["metrics"]["loss"] for e in events(out) if e["kind"] == "step"}
