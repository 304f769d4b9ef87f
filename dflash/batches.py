"""The one global sequence of micro-batches, and what each holds; no model here.

Micro-batch g is a function of the seed and g: which rank computes it, how many ranks there are and
whether the run was resumed cannot change it. Target ranks and drafter ranks both derive it, so only
states travel between them. Micro-batches have a budget of tokens (see packing) or, when asked, a
number of documents.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from dflash import packing
from dflash.anchors import eligible_anchors, sample_anchors, slot_mask
from dflash.attention import INVALID_DOC, PADDING_DOC, Layout
from dflash.errors import DflashError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from dflash.shards import Row, TokenizedSet

BUCKET = 8
"""Micro-batches whose documents are sorted by length together: less padding, still mixed."""
SHAPES = 8
"""Numbers of blocks, in equal steps, that a compiled kernel may meet under a budget of tokens."""
BATCH_TOKENS, BATCH_BLOCKS = 8192, 2048


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
    kept: Tensor  # [r] the supervised ones by number: asked for here, a GPU is never waited for
    slot: Tensor  # [Q]
    layout: Layout

    def to(self, device: torch.device) -> DrafterRows:
        if device.type == "cpu":
            return self
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> DrafterRows:
        """In memory that a GPU copies from while its host goes on."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> DrafterRows:
        layout = Layout(
            **{name: change(getattr(self.layout, name)) for name in Layout.__dataclass_fields__}
        )
        names = ("block_ids", "labels", "supervised", "kept", "slot")
        return DrafterRows(**{name: change(getattr(self, name)) for name in names}, layout=layout)


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
        anchors_per_doc: int,
        block_size: int,
        mask_token_id: int,
        max_length: int,
        seed: int,
        batch_docs: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        batch_blocks: int = BATCH_BLOCKS,
    ) -> None:
        self.data, self.batch_docs, self.seed = data, batch_docs, seed
        self.batch_tokens, self.batch_blocks = batch_tokens, batch_blocks
        self.anchors_per_doc, self.block_size = anchors_per_doc, block_size
        self.mask_token_id, self.max_length = mask_token_id, max_length
        self._lengths = np.minimum(np.asarray(data.lengths, dtype=np.int64), max_length)
        self._blocks = self._count_blocks()
        self._usable = np.flatnonzero(self._blocks)
        needed = batch_docs or 1
        if len(self._usable) < needed:
            raise DflashError(
                f"{len(self._usable)} of {len(data)} documents have two supervised tokens in a row "
                f"within the first {max_length}; a micro-batch needs {needed}.",
                "Add data, raise --max-length or lower --batch-docs.",
            )
        self._check_budgets()
        self._counts: list[int] = []  # micro-batches of the epochs planned so far
        self._epochs: dict[int, list[tuple[int, ...]]] = {}  # the two used last
        self._planning = threading.RLock()  # a loader asks from its own thread

    def _count_blocks(self) -> np.ndarray:
        """Blocks that each document will have; none where no anchor is eligible."""
        eligible = (
            len(eligible_anchors(self.data.row(i).loss_mask[: self.max_length]))
            for i in range(len(self.data))
        )
        found = np.fromiter(eligible, dtype=np.int64, count=len(self.data))
        return np.minimum(found, self.anchors_per_doc)

    def _check_budgets(self) -> None:
        if self.batch_docs is not None:
            return
        budgets = (
            ("tokens", self._lengths, self.batch_tokens, "--max-length"),
            ("blocks", self._blocks, self.batch_blocks, "--anchors-per-doc"),
        )
        for what, sizes, budget, other in budgets:
            largest = int(sizes[self._usable].max())
            if largest > budget:
                raise DflashError(
                    f"A document has {largest} {what}, a micro-batch at most {budget}.",
                    f"Raise --batch-{what} or lower {other}.",
                )

    def epoch_size(self, epoch: int) -> int:
        """Micro-batches in one pass; under a budget of tokens each pass has its own number."""
        if self.batch_docs is not None:
            return len(self._usable) // self.batch_docs  # the rest of a pass is left out
        with self._planning:
            while len(self._counts) <= epoch:
                self._counts.append(len(self._order(len(self._counts))))
            return self._counts[epoch]

    @property
    def per_epoch(self) -> int:
        return self.epoch_size(0)

    def in_epochs(self, epochs: float) -> int:
        """Micro-batches in so many passes."""
        whole = int(epochs)
        rest = epochs - whole
        part = int(rest * self.epoch_size(whole)) if rest > 0 else 0
        return sum(map(self.epoch_size, range(whole))) + part

    @property
    def max_tokens(self) -> int:
        """No micro-batch has more context tokens: the size of a ring buffer."""
        lengths = self._lengths[self._usable]
        if self.batch_docs is None:
            return min(self.batch_tokens, int(lengths.sum()))
        return int(np.sort(lengths)[-self.batch_docs :].sum())

    @property
    def mean_tokens(self) -> float:
        """Of a micro-batch."""
        lengths = self._lengths[self._usable]
        if self.batch_docs is None:
            return float(lengths.sum()) / self.per_epoch
        return float(lengths.mean()) * self.batch_docs

    @property
    def fill(self) -> dict[str, float]:
        """How full the first epoch's micro-batches are of each budget."""
        if self.batch_docs is not None:
            return {}
        made = self._order(0)
        return {
            "tokens": packing.fill(made, self._lengths, self.batch_tokens),
            "blocks": packing.fill(made, self._blocks, self.batch_blocks),
        }

    def tokens_of(self, number: int) -> int:
        """Context tokens of a micro-batch."""
        return int(self._lengths[list(self._documents(number)[1])].sum())

    def _documents(self, number: int) -> tuple[int, tuple[int, ...]]:
        """Epoch and document numbers of a micro-batch."""
        if self.batch_docs is not None:
            epoch, place = divmod(number, self.epoch_size(0))
            return epoch, self._order(epoch)[place]
        epoch, place = 0, number
        while place >= self.epoch_size(epoch):
            place -= self.epoch_size(epoch)
            epoch += 1
        return epoch, self._order(epoch)[place]

    def micro_batch(self, number: int) -> MicroBatch:
        epoch, documents = self._documents(number)
        rows = tuple(self._cut(self.data.row(int(i))) for i in documents)
        return MicroBatch(number=number, epoch=epoch, documents=documents, rows=rows)

    def _cut(self, row: Row) -> Row:
        if len(row.input_ids) <= self.max_length:
            return row
        return type(row)(
            id=row.id,
            input_ids=row.input_ids[: self.max_length],
            loss_mask=row.loss_mask[: self.max_length],
        )

    def _order(self, epoch: int) -> list[tuple[int, ...]]:
        """Document numbers of each micro-batch of an epoch."""
        with self._planning:
            if epoch not in self._epochs:
                draw = np.random.default_rng((self.seed, epoch))
                made = self._by_tokens(draw) if self.batch_docs is None else self._by_number(draw)
                self._epochs = dict([*self._epochs.items(), (epoch, made)][-2:])
            return self._epochs[epoch]

    def _by_tokens(self, draw: np.random.Generator) -> list[tuple[int, ...]]:
        made = packing.pack(
            draw.permutation(self._usable),
            self._lengths,
            self._blocks,
            tokens=self.batch_tokens,
            most_blocks=self.batch_blocks,
        )
        return [made[i] for i in draw.permutation(len(made))]

    def _by_number(self, draw: np.random.Generator) -> list[tuple[int, ...]]:
        assert self.batch_docs is not None
        count = len(self._usable) // self.batch_docs * self.batch_docs
        shuffled = draw.permutation(self._usable)[:count]
        groups = []
        for start in range(0, count, BUCKET * self.batch_docs):
            part = shuffled[start : start + BUCKET * self.batch_docs]
            part = part[np.argsort(self.data.lengths[part], kind="stable")]
            groups.append(draw.permutation(part.reshape(-1, self.batch_docs)))
        return list(map(tuple, np.concatenate(groups).tolist()))

    def target_rows(self, batch: MicroBatch, part: list[int] | None = None) -> TargetRows:
        """All documents of a micro-batch, or those with these places in it."""
        rows = batch.rows if part is None else [batch.rows[i] for i in part]
        lengths = [len(row.input_ids) for row in rows]
        ids = np.zeros((len(lengths), max(lengths)), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : lengths[i]] = row.input_ids
        return TargetRows(input_ids=torch.from_numpy(ids), lengths=torch.tensor(lengths))

    def drafter_rows(
        self,
        batch: MicroBatch,
        *,
        fixed: bool = False,
        context_tokens: int | None = None,
        anchors: int | None = None,
    ) -> DrafterRows:
        """Blocks and context of a micro-batch.

        Args:
            fixed: Invalid blocks at the end up to `batch_docs * anchors_per_doc`, or to the next of
                a few numbers under a budget, so that compiled kernels see few shapes. Without it
                only real blocks are there.
            anchors: At most so many blocks a document, instead of `anchors_per_doc`.
            context_tokens: Pad the context to this many tokens (also for one shape).
        """
        parts = [self._document(batch, i, anchors) for i in range(len(batch.rows))]
        if fixed:
            real = sum(len(part["slot"]) for part in parts) // self.block_size
            parts.append(self._filler(self._fixed_blocks(real) - real))
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
        kept = tensors["supervised"].nonzero().squeeze(-1)
        return DrafterRows(**tensors, kept=kept, layout=layout)

    def _fixed_blocks(self, real: int) -> int:
        if self.batch_docs is not None:
            return self.batch_docs * self.anchors_per_doc
        step = max(1, self.batch_blocks // SHAPES)
        return -(-real // step) * step

    def _filler(self, blocks: int) -> dict[str, np.ndarray]:
        """Blocks of no document, that see nothing and train nothing."""
        slots = np.zeros(blocks * self.block_size, dtype=np.int64)
        return {
            "block_ids": slots + self.mask_token_id,
            "labels": slots,
            "supervised": slots.astype(bool),
            "slot": np.tile(np.arange(self.block_size), blocks),
            "doc": slots + INVALID_DOC,
            "anchor": slots,
            "pos": slots,
        }

    def _document(self, batch: MicroBatch, i: int, most: int | None) -> dict[str, np.ndarray]:
        row, size = batch.rows[i], self.block_size
        anchors = sample_anchors(
            row.loss_mask,
            count=self.anchors_per_doc if most is None else most,
            seed=self.seed,
            epoch=batch.epoch,
            document=batch.documents[i],
        )
        pos = anchors[:, None] + np.arange(size)  # [n,B]
        labels = row.input_ids[np.minimum(pos, len(row.input_ids) - 1)].astype(np.int64)
        ids = np.full_like(labels, self.mask_token_id)
        ids[:, 0] = labels[:, 0]
        shape = pos.shape
        columns = {
            "block_ids": ids,
            "labels": labels,
            "supervised": slot_mask(row.loss_mask, anchors, size),
            "slot": np.broadcast_to(np.arange(size), shape),
            "doc": np.full(shape, i, dtype=np.int64),
            "anchor": np.broadcast_to(anchors[:, None], shape),
            "pos": pos,
        }
        return {name: column.reshape(-1) for name, column in columns.items()}
