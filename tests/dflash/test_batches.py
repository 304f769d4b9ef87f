"""The sequence of micro-batches: from the seed alone, each document once an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dflash.attention import INVALID_DOC, PADDING_DOC
from dflash.batches import Batches
from dflash.errors import DflashError
from dflash.shards import Row

MASK_ID, SIZE = 3, 4


class FakeSet:
    """Rows in memory with the interface of a tokenized set."""

    def __init__(self, lengths: list[int], prompt: int = 5) -> None:
        self.lengths = np.array(lengths, dtype=np.int32)
        self.prompt = prompt

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, index: int) -> Row:
        length = int(self.lengths[index])
        mask = (np.arange(length) >= self.prompt).astype(np.uint8)
        return Row(id=str(index), input_ids=np.arange(length, dtype=np.int32) + 10, loss_mask=mask)


def batches(data: FakeSet | None = None, **changes: Any) -> Batches:
    options = {
        "batch_docs": 3, "anchors_per_doc": 6, "block_size": SIZE, "mask_token_id": MASK_ID,
        "max_length": 100, "seed": 0,
    }  # fmt: skip
    return Batches(data or FakeSet(list(range(8, 40))), **(options | changes))


def test_every_document_once_an_epoch_in_an_order_of_its_own() -> None:
    made = batches()
    orders = []
    for epoch in range(2):
        first = epoch * made.per_epoch
        docs = [
            d for g in range(first, first + made.per_epoch) for d in made.micro_batch(g).documents
        ]
        assert len(docs) == len(set(docs)) == 30
        orders.append(docs)
    assert orders[0] != orders[1]


def by_tokens(**changes: Any) -> Batches:
    options = {"batch_docs": None, "batch_tokens": 80, "batch_blocks": 14}
    return batches(**(options | changes))


def test_under_a_budget_every_document_comes_once_an_epoch_also_the_last_ones() -> None:
    made = by_tokens()
    g = 0
    for epoch in range(3):
        size = made.epoch_size(epoch)
        found = [made.micro_batch(g + i) for i in range(size)]
        assert sorted(d for one in found for d in one.documents) == list(range(32))
        assert all(one.epoch == epoch and one.tokens <= 80 for one in found)
        assert [made.tokens_of(one.number) for one in found] == [one.tokens for one in found]
        g += size
    assert made.in_epochs(3) == g
    assert made.in_epochs(1.5) == made.epoch_size(0) + made.epoch_size(1) // 2
    assert made.fill["tokens"] > 0.5


def test_under_a_budget_shapes_are_few() -> None:
    made = by_tokens(batch_blocks=16)
    shapes = {len(made.drafter_rows(made.micro_batch(g), fixed=True).slot) for g in range(20)}
    assert all(n % (2 * SIZE) == 0 and n <= 16 * SIZE for n in shapes)
    real = [len(made.drafter_rows(made.micro_batch(g)).slot) for g in range(20)]
    assert len(shapes) < len(set(real))


@pytest.mark.parametrize(("change", "flag"), [({"batch_tokens": 20}, "--batch-tokens"),
                                              ({"batch_blocks": 3}, "--batch-blocks")])  # fmt: skip
def test_a_document_that_fits_no_micro_batch_is_told(change: dict, flag: str) -> None:
    with pytest.raises(DflashError) as caught:
        by_tokens(**change)
    assert flag in caught.value.hint


def test_a_micro_batch_is_the_same_whoever_asks_and_when() -> None:
    one, other = batches(), batches()
    other.micro_batch(25)
    for g in (0, 7, 12):
        assert one.micro_batch(g).documents == other.micro_batch(g).documents
        a, b = one.drafter_rows(one.micro_batch(g)), other.drafter_rows(other.micro_batch(g))
        assert torch.equal(a.block_ids, b.block_ids)
        assert torch.equal(a.layout.block_pos, b.layout.block_pos)


def test_anchors_do_not_depend_on_the_batch_a_document_is_in() -> None:
    def anchors_of(made: Batches, document: int) -> list[int]:
        for g in range(made.per_epoch):
            batch = made.micro_batch(g)
            if document in batch.documents:
                rows = made.drafter_rows(batch)
                mine = rows.layout.block_doc == batch.documents.index(document)
                return rows.layout.block_anchor[mine][::SIZE].tolist()
        raise AssertionError(document)

    assert anchors_of(batches(batch_docs=1), 20) == anchors_of(batches(batch_docs=2), 20)


def test_labels_are_the_tokens_at_the_slots_own_positions() -> None:
    made = batches()
    batch = made.micro_batch(0)
    rows = made.drafter_rows(batch)
    for q in range(len(rows.slot)):
        document = batch.rows[int(rows.layout.block_doc[q])]
        pos = int(rows.layout.block_pos[q])
        if rows.supervised[q]:
            assert int(rows.labels[q]) == int(document.input_ids[pos])
            assert document.loss_mask[pos]
        anchor = int(document.input_ids[int(rows.layout.block_anchor[q])])
        assert int(rows.block_ids[q]) == (anchor if rows.slot[q] == 0 else MASK_ID)


def test_a_block_ends_with_its_document() -> None:
    """The next document of a packed row begins supervised: a slot must not run on into it."""
    made = batches(FakeSet([8, 8, 8], prompt=0))
    rows = made.drafter_rows(made.micro_batch(0))
    beyond = rows.layout.block_pos >= 8
    assert beyond.any()
    assert not rows.supervised[beyond].any()


def test_fixed_shape_has_filler_blocks_that_train_nothing() -> None:
    made = batches()
    shapes = set()
    for g in range(5):
        rows = made.drafter_rows(made.micro_batch(g), fixed=True, context_tokens=made.max_tokens)
        shapes.add((len(rows.slot), len(rows.layout.context_pos)))
        filler = rows.layout.block_doc == INVALID_DOC
        assert not rows.supervised[filler].any()
        assert (rows.layout.context_doc == PADDING_DOC).sum() == made.max_tokens - sum(
            len(row.input_ids) for row in made.micro_batch(g).rows
        )
    assert len(shapes) == 1


def test_long_documents_are_cut_and_useless_ones_left_out() -> None:
    made = batches(FakeSet([50, 50, 50, 5, 6]), max_length=20)
    assert made.per_epoch == 1
    batch = made.micro_batch(0)
    assert batch.tokens == made.max_tokens == 60
    with pytest.raises(DflashError, match="first 6"):
        batches(FakeSet([50, 50, 50]), max_length=6)


def test_target_rows_are_right_padded_one_document_each() -> None:
    made = batches()
    batch = made.micro_batch(3)
    rows = made.target_rows(batch)
    for i, row in enumerate(batch.rows):
        assert rows.input_ids[i, : rows.lengths[i]].tolist() == row.input_ids.tolist()
        assert (rows.input_ids[i, rows.lengths[i] :] == 0).all()
