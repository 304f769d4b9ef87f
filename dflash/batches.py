"""The one global sequence of micro-batches, and what each holds; no model here.

Micro-batch g is a function of the seed and g: which rank computes it, how many ranks there are and
whether the run was resumed cannot change it. Target ranks and drafter ranks both derive it, so only
states travel between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dflash.anchors import eligible_anchors, sample_anchors, slot_mask
from dflash.attention import INVALID_DOC, PADDING_DOC, Layout
from dflash.errors import DflashError

if TYPE_CHECKING:
    from torch import Tensor

    from dflash.shards import Row, TokenizedSet

BUCKET = 8
"""Micro-batches whose documents are sorted by length together: less padding, still mixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """What a target rank runs: one document a row, right-padded."""

    input_ids: Tensor  # [R,S]
    lengths: Tensor  # [R]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRows:
    """What a drafter rank trains on: the documents packed into one row of blocks and context."""

    block_ids: Tensor  # [Q] anchor tokens and masks
    labels: Tensor  # [Q]
    supervised: Tensor  # [Q] bool
    slot: Tensor  # [Q]
    layout: Layout

    def to(self, device: torch.device) -> DrafterRows:
        if device.type == "cpu":
            return self
        layout = Layout(
            **{name: getattr(self.layout, name).to(device) for name in Layout.__dataclass_fields__}
        )
        names = ("block_ids", "labels", "supervised", "slot")
        return DrafterRows(
            **{name: getattr(self, name).to(device) for name in names}, layout=layout
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Documents of one micro-batch, by global number."""

    number: int
    epoch: int
    documents: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        """Context tokens: rows of states that travel."""
        return sum(len(row.input_ids) for row in self.rows)


class Batches:
    """Micro-batches of a tokenized set, in the order of (seed, epoch)."""

    def __init__(
        self,
        data: TokenizedSet,
        *,
        batch_docs: int,
        anchors_per_doc: int,
        block_size: int,
        mask_token_id: int,
        max_length: int,
        seed: int,
    ) -> None:
        self.data, self.batch_docs, self.seed = data, batch_docs, seed
        self.anchors_per_doc, self.block_size = anchors_per_doc, block_size
        self.mask_token_id, self.max_length = mask_token_id, max_length
        self._usable = self._usable_documents()
        if len(self._usable) < batch_docs:
            raise DflashError(
                f"{len(self._usable)} of {len(data)} documents have two supervised tokens in a row "
                f"within the first {max_length}; a micro-batch needs {batch_docs}.",
                "Add data, raise --max-length or lower --batch-docs.",
            )
        self._epoch: tuple[int, np.ndarray] | None = None

    def _usable_documents(self) -> np.ndarray:
        usable = [
            i
            for i in range(len(self.data))
            if len(eligible_anchors(self.data.row(i).loss_mask[: self.max_length]))
        ]
        return np.array(usable, dtype=np.int64)

    @property
    def per_epoch(self) -> int:
        """Whole micro-batches in one pass; the rest of a shuffled pass is left out."""
        return len(self._usable) // self.batch_docs

    @property
    def max_tokens(self) -> int:
        """No micro-batch has more context tokens: the size of a ring buffer."""
        longest = np.sort(np.minimum(self.data.lengths[self._usable], self.max_length))
        return int(longest[-self.batch_docs :].sum())

    @property
    def mean_tokens(self) -> float:
        lengths = np.minimum(self.data.lengths[self._usable], self.max_length)
        return float(lengths.mean()) * self.batch_docs

    def micro_batch(self, number: int) -> MicroBatch:
        epoch, place = divmod(number, self.per_epoch)
        documents = self._order(epoch)[place]
        rows = tuple(self._cut(self.data.row(int(i))) for i in documents)
        return MicroBatch(
            number=number, epoch=epoch, documents=tuple(map(int, documents)), rows=rows
        )

    def _cut(self, row: Row) -> Row:
        if len(row.input_ids) <= self.max_length:
            return row
        return type(row)(
            id=row.id,
            input_ids=row.input_ids[: self.max_length],
            loss_mask=row.loss_mask[: self.max_length],
        )

    def _order(self, epoch: int) -> np.ndarray:
        """[per_epoch, batch_docs] document numbers."""
        if self._epoch is None or self._epoch[0] != epoch:
            draw = np.random.default_rng((self.seed, epoch))
            shuffled = draw.permutation(self._usable)[: self.per_epoch * self.batch_docs]
            groups = []
            for start in range(0, len(shuffled), BUCKET * self.batch_docs):
                part = shuffled[start : start + BUCKET * self.batch_docs]
                part = part[np.argsort(self.data.lengths[part], kind="stable")]
                groups.append(draw.permutation(part.reshape(-1, self.batch_docs)))
            self._epoch = (epoch, np.concatenate(groups))
        return self._epoch[1]

    def target_rows(self, batch: MicroBatch) -> TargetRows:
        lengths = [len(row.input_ids) for row in batch.rows]
        ids = np.zeros((len(lengths), max(lengths)), dtype=np.int64)
        for i, row in enumerate(batch.rows):
            ids[i, : lengths[i]] = row.input_ids
        return TargetRows(input_ids=torch.from_numpy(ids), lengths=torch.tensor(lengths))

    def drafter_rows(
        self, batch: MicroBatch, *, fixed: bool = False, context_tokens: int | None = None
    ) -> DrafterRows:
        """Blocks and context of a micro-batch.

        Args:
            fixed: Always `batch_docs * anchors_per_doc` blocks, the missing ones invalid, so that
                compiled kernels see one shape. Without it only real blocks are there.
            context_tokens: Pad the context to this many tokens (also for one shape).
        """
        parts = [self._document(batch, i, fixed) for i in range(len(batch.rows))]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        blocks = len(joined["slot"]) // self.block_size
        lengths = [len(row.input_ids) for row in batch.rows]
        padding = (context_tokens or sum(lengths)) - sum(lengths)
        doc = np.concatenate(
            [np.repeat(np.arange(len(lengths)), lengths), np.full(padding, PADDING_DOC)]
        )
        pos = np.concatenate([*(np.arange(n) for n in lengths), np.zeros(padding, dtype=np.int64)])
        tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in joined.items()}
        layout = Layout(
            context_doc=torch.from_numpy(doc),
            context_pos=torch.from_numpy(pos),
            block_doc=tensors.pop("doc"),
            block_id=torch.arange(blocks).repeat_interleave(self.block_size),
            block_anchor=tensors.pop("anchor"),
            block_pos=tensors.pop("pos"),
        )
        return DrafterRows(**tensors, layout=layout)

    def _document(self, batch: MicroBatch, i: int, fixed: bool) -> dict[str, np.ndarray]:
        row, size = batch.rows[i], self.block_size
        anchors = sample_anchors(
            row.loss_mask,
            count=self.anchors_per_doc,
            seed=self.seed,
            epoch=batch.epoch,
            document=batch.documents[i],
        )
        real = len(anchors)
        missing = self.anchors_per_doc - real if fixed else 0
        anchors = np.concatenate([anchors, np.zeros(missing, dtype=anchors.dtype)])
        valid = (np.arange(real + missing) < real)[:, None]  # [n,1]
        pos = anchors[:, None] + np.arange(size)  # [n,B]
        labels = row.input_ids[np.minimum(pos, len(row.input_ids) - 1)].astype(np.int64)
        ids = np.full_like(labels, self.mask_token_id)
        ids[:, 0] = labels[:, 0]
        shape = pos.shape
        columns = {
            "block_ids": ids,
            "labels": labels,
            "supervised": slot_mask(row.loss_mask, anchors, size) & valid,
            "slot": np.broadcast_to(np.arange(size), shape),
            "doc": np.where(valid, i, INVALID_DOC) * np.ones(shape, dtype=np.int64),
            "anchor": np.broadcast_to(anchors[:, None], shape),
            "pos": pos,
        }
        return {name: column.reshape(-1) for name, column in columns.items()}
