"""The tokenized set's shards: exact round trips, views instead of copies, damage named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash import shards
from dflash.errors import InputInvalid
from dflash.files import write_json
from dflash.shards import Row, TokenizedSet, write_shard


def row(name, ids, mask):
    return Row(
        id=name,
        input_ids=np.array(ids, dtype=np.int32),
        loss_mask=np.array(mask, dtype=np.uint8),
    )


def write_set(path, *groups, split="train"):
    entries = [
        write_shard(path / split / f"shard-{number:05d}.arrow", rows)
        for number, rows in enumerate(groups)
    ]
    write_json(
        path / "manifest.json",
        {"format": shards.FORMAT, "splits": {split: {"shards": entries}}},
    )
    return path


def test_rows_come_back_across_shards_and_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "BATCH_ROWS", 2)
    rows = [row(f"é{n}", range(n + 1), [0] * n + [1]) for n in range(9)]
    found = TokenizedSet(write_set(tmp_path, rows[:5], rows[5:]))
    assert len(found) == 9
    assert found.lengths.tolist() == list(range(1, 10))
    assert found.loss_tokens.tolist() == [1] * 9
    for number, expected in enumerate(rows):
        got = found.row(number)
        assert got.id == expected.id
        assert np.array_equal(got.input_ids, expected.input_ids)
        assert np.array_equal(got.loss_mask, expected.loss_mask)
        assert (got.input_ids.dtype, got.loss_mask.dtype) == (np.int32, np.uint8)
    with pytest.raises(IndexError):
        found.row(9)


@given(
    st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9), min_size=1, max_size=9)
)
def test_any_rows(tmp_path_factory, samples):
    path = tmp_path_factory.mktemp("set")
    rows = [row(str(n), ids, [1] * len(ids)) for n, ids in enumerate(samples)]
    found = TokenizedSet(write_set(path, rows))
    assert [found.row(n).input_ids.tolist() for n in range(len(found))] == samples


def test_a_row_is_a_view_that_outlives_the_set(tmp_path):
    found = TokenizedSet(write_set(tmp_path, [row("a", [1, 2, 3], [0, 1, 1])]))
    got = found.row(0)
    assert not got.input_ids.flags.owndata
    assert not got.input_ids.flags.writeable
    del found
    assert got.input_ids.tolist() == [1, 2, 3]


def test_same_rows_same_bytes(tmp_path):
    rows = [row("a", [1, 2], [0, 1]), row("b", [3], [1])]
    assert (
        write_shard(tmp_path / "x", rows)["sha256"] == write_shard(tmp_path / "y", rows)["sha256"]
    )


def test_mask_of_another_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match="2 ids but 1 mask"):
        write_shard(tmp_path / "x.arrow", [row("a", [1, 2], [1])])
    assert list(tmp_path.iterdir()) == []


def test_damage_is_named(tmp_path):
    path = write_set(tmp_path, [row("a", [1, 2], [0, 1])])
    shard = tmp_path / "train" / "shard-00000.arrow"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    with pytest.raises(InputInvalid, match="the manifest says"):
        TokenizedSet(path)
    shard.write_bytes(b"x" * len(data))
    with pytest.raises(InputInvalid, match="no shard of a tokenized set"):
        TokenizedSet(path)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    shard.write_bytes(flipped)
    assert shards.verify(path, "train") == [
        "train/shard-00000.arrow differs from the manifest's sha256"
    ]
    shard.unlink()
    with pytest.raises(InputInvalid, match="not on disk"):
        TokenizedSet(path)


def test_other_folders(tmp_path):
    with pytest.raises(InputInvalid, match="there is no tokenized set's manifest"):
        TokenizedSet(tmp_path)
    write_set(tmp_path, [row("a", [1], [1])])
    with pytest.raises(InputInvalid, match="no split 'heldout', only train"):
        TokenizedSet(tmp_path, "heldout")
    write_json(tmp_path / "manifest.json", {"format": "other/1"})
    with pytest.raises(InputInvalid, match="format 'other/1'"):
        TokenizedSet(tmp_path)
