"""The tokenized set on disk: Arrow IPC shards, memory-mapped, and the reader everything uses.

    SET/manifest.json
    SET/train/shard-00000.arrow ...     SET/heldout/shard-00000.arrow ...

Columns: id, input_ids (large_list<int32>), loss_mask (large_list<uint8>), length, loss_tokens.
Uncompressed, so that a row is a numpy view into the map: no copy, no decode, 1-2 us a row.
Large lists, because two thousand million tokens no longer fit 32-bit offsets.
"""

from __future__ import annotations

import bisect
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dflash.errors import InputInvalid
from dflash.files import read_json, sha256_file, write_aside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    import numpy as np
    import pyarrow as pa

FORMAT = "dflash-tokenized/1"
BATCH_ROWS = 1000
MANIFEST = "manifest.json"
SHARD = {"file": str, "bytes": int, "rows": int, "sha256": str}
SPLITS = {"*": {"shards": [SHARD]}}
TOKENIZER = {"fingerprint": str, "vocab_size": int, "eos_token_id?": int, "pad_token_id?": int}
"""What stands in a manifest: its splits, and the tokenizer that made them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sample: token ids and, per token, whether the target generated it."""

    id: str
    input_ids: np.ndarray  # [length] int32
    loss_mask: np.ndarray  # [length] uint8, 0 or 1


def schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.string()),
            ("input_ids", pa.large_list(pa.int32())),
            ("loss_mask", pa.large_list(pa.uint8())),
            ("length", pa.int32()),
            ("loss_tokens", pa.int32()),
        ]
    )


def write_shard(path: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """Write one shard, whole or not at all; returns its manifest entry."""
    with ShardWriter(path, keep_empty=True) as writer:
        for row in rows:
            writer.add(row)
    return writer.entries[0]


class ShardWriter:
    """A shard row by row, whole or not at all; one without rows is no file. See `entries`."""

    def __init__(self, path: Path, *, keep_empty: bool = False) -> None:
        self.entries: list[dict[str, Any]] = []
        self._path, self._keep_empty = path, keep_empty
        self._rows: list[Row] = []
        self._count = 0
        self._stack = contextlib.ExitStack()
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) == BATCH_ROWS:
            self._flush()

    def discard(self) -> None:
        """Nothing is to be kept; an older file of that name stays."""
        self._rows, self._keep_empty = [], False
        if self._writer is not None:
            with contextlib.suppress(_Discarded):
                self._stack.__exit__(_Discarded, _Discarded(), None)
        self._writer, self._count = None, -1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        else:
            self._stack.__exit__(kind, error, at)

    def _finish(self) -> None:
        if self._count < 0:
            return
        if self._rows or (self._keep_empty and self._writer is None):
            self._flush()
        if self._writer is None:
            self._path.unlink(missing_ok=True)
            return
        self._stack.close()
        self.entries.append(
            {
                "file": self._path.name,
                "rows": self._count,
                "bytes": self._path.stat().st_size,
                "sha256": sha256_file(self._path),
            }
        )

    def _flush(self) -> None:
        import pyarrow as pa

        if self._writer is None:
            handle = self._stack.enter_context(write_aside(self._path))
            self._writer = self._stack.enter_context(pa.ipc.new_file(handle, schema()))
        if self._rows:
            self._writer.write_batch(_record_batch(self._rows))
        self._count += len(self._rows)
        self._rows = []


class _Discarded(Exception):
    pass


def _record_batch(rows: Sequence[Row]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    for row in rows:
        if len(row.input_ids) != len(row.loss_mask):
            raise ValueError(
                f"row {row.id!r}: {len(row.input_ids)} ids but {len(row.loss_mask)} mask values"
            )
    lengths = np.array([len(row.input_ids) for row in rows], dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = np.concatenate([row.input_ids for row in rows]).astype(np.int32, copy=False)
    mask = np.concatenate([row.loss_mask for row in rows]).astype(np.uint8, copy=False)
    loss_tokens = np.array([int(row.loss_mask.sum()) for row in rows], dtype=np.int32)
    columns = [
        pa.array([row.id for row in rows], pa.string()),
        pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(ids, pa.int32())),
        pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(mask, pa.uint8())),
        pa.array(lengths, pa.int32()),
        pa.array(loss_tokens, pa.int32()),
    ]
    return pa.record_batch(columns, schema=schema())


def read_manifest(path: Path, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Of a tokenized set; `more`: the shape of what its reader takes besides the shards."""
    return read_json(
        path / MANIFEST, "tokenized set's manifest", {"splits": SPLITS, **(more or {})},
        form=FORMAT, hint="Point at the folder that `dflash tokenize --out` wrote.",
    )  # fmt: skip


class TokenizedSet:
    """One split of a tokenized set, opened read-only; rows are views into the memory map."""

    def __init__(self, path: Path | str, split: str = "train") -> None:
        self.path = Path(path)
        self.split = split
        self.manifest = read_manifest(self.path)
        self._batches: list[_Batch] = []
        self._starts: list[int] = []
        rows = 0
        for entry in self._entries():
            for batch in _open_shard(self.path / split / entry["file"], entry):
                self._starts.append(rows)
                self._batches.append(batch)
                rows += batch.rows
        self._rows = rows

    def _entries(self) -> list[dict[str, Any]]:
        splits = self.manifest["splits"]
        if self.split not in splits:
            raise InputInvalid(
                f"{self.path} has no split {self.split!r}, only {', '.join(sorted(splits))}",
                "Name one of those, or tokenize again with another --split.",
            )
        return list(splits[self.split]["shards"])

    def __len__(self) -> int:
        return self._rows

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per row, int32, in row order."""
        return self._column("lengths")

    @property
    def loss_tokens(self) -> np.ndarray:
        """Tokens with loss per row, int32, in row order."""
        return self._column("loss_tokens")

    def _column(self, name: str) -> np.ndarray:
        import numpy as np

        parts = [getattr(batch, name) for batch in self._batches]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def find(self, row_id: str) -> int | None:
        """The place of the row with this id."""
        for start, batch in zip(self._starts, self._batches, strict=True):
            place = batch.find(row_id)
            if place is not None:
                return start + place
        return None

    def row(self, index: int) -> Row:
        if not 0 <= index < self._rows:
            raise IndexError(f"row {index} of {self._rows} in {self.path}/{self.split}")
        position = bisect.bisect_right(self._starts, index) - 1
        return self._batches[position].row(index - self._starts[position])


class _Batch:
    """Numpy views over one record batch; the views keep the map alive."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        batch.validate()  # a flipped bit in an offset must not become a read outside the map
        self.rows: int = batch.num_rows
        self._ids = batch.column("id")
        self._offsets = batch.column("input_ids").offsets.to_numpy()
        self._tokens = batch.column("input_ids").values.to_numpy()
        self._mask_offsets = batch.column("loss_mask").offsets.to_numpy()
        self._mask = batch.column("loss_mask").values.to_numpy()
        self.lengths = batch.column("length").to_numpy()
        self.loss_tokens = batch.column("loss_tokens").to_numpy()

    def find(self, row_id: str) -> int | None:
        import pyarrow.compute as pc

        place: int = pc.index(self._ids, row_id).as_py()
        return place if place >= 0 else None

    def row(self, index: int) -> Row:
        start, end = self._offsets[index], self._offsets[index + 1]
        mask_start, mask_end = self._mask_offsets[index], self._mask_offsets[index + 1]
        return Row(
            id=self._ids[index].as_py(),
            input_ids=self._tokens[start:end],
            loss_mask=self._mask[mask_start:mask_end],
        )


def _open_shard(path: Path, entry: dict[str, Any]) -> list[_Batch]:
    import pyarrow as pa

    torn = "Run `dflash tokenize` again with the same arguments: it rewrites what is not whole."
    if not path.is_file():
        raise InputInvalid(f"{path} is in the manifest but not on disk", torn)
    if path.stat().st_size != entry["bytes"]:
        raise InputInvalid(
            f"{path} has {path.stat().st_size} bytes, the manifest says {entry['bytes']}", torn
        )
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [_Batch(reader.get_batch(n)) for n in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputInvalid(f"{path} is no shard of a tokenized set: {error}", torn) from error
    if sum(batch.rows for batch in batches) != entry["rows"]:
        raise InputInvalid(f"{path} does not hold the {entry['rows']} rows of the manifest", torn)
    return batches


def verify(path: Path, split: str) -> list[str]:
    """Digests of a whole split against its manifest; returns one sentence per difference."""
    entries = read_manifest(path)["splits"][split]["shards"]
    return [
        f"{split}/{entry['file']} differs from the manifest's sha256"
        for entry in entries
        if sha256_file(path / split / entry["file"]) != entry["sha256"]
    ]
