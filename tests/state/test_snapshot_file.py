"""A snapshot file is whole or it is refused; nothing in it can write elsewhere."""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import asdict, replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.snapshot_file import (
    FORMAT,
    MAGIC,
    SnapshotDamaged,
    SnapshotHead,
    pack,
    read_head,
    unpack,
)

HEAD = SnapshotHead(
    workspace_id="01abc",
    name="mine",
    title="Mine\nand more",
    revision=7,
    event_hash="e" * 64,
    author="ann@box",
    at="2026-03-01T12:00:00.000Z",
    notes_sha256="n" * 64,
)
FILES = {"state.db": b"\x00\x01" * 4000, "runbook.yaml": b"version: 1\n"}
WHOLE = pack(HEAD, FILES)


def test_what_was_packed_comes_back_and_equal_content_gives_equal_bytes() -> None:
    head, files = unpack(WHOLE, "x")
    assert files == FILES
    assert replace(head, size=0, sha256="") == HEAD
    assert pack(HEAD, FILES) == WHOLE
    assert read_head(WHOLE[:600], "x") == head


@given(st.integers(min_value=0, max_value=len(WHOLE) - 1))
def test_a_torn_file_is_never_taken_for_whole(length: int) -> None:
    with pytest.raises(SnapshotDamaged):
        unpack(WHOLE[:length], "x")


@given(st.integers(min_value=0, max_value=len(WHOLE) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found_out_or_changes_nothing_that_is_used(at: int, by: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= by
    try:
        _, files = unpack(bytes(data), "x")
    except SnapshotDamaged:
        return
    assert files == FILES  # a letter of the title or of the author


def test_a_longer_file_is_refused() -> None:
    with pytest.raises(SnapshotDamaged, match="bytes instead of"):
        unpack(WHOLE + b"\0", "x")


def test_a_newer_format_is_named() -> None:
    newer = WHOLE.replace(MAGIC + str(FORMAT).encode(), MAGIC + b"9", 1)
    with pytest.raises(SnapshotDamaged, match="its format is 9") as refused:
        unpack(newer, "x")
    assert "Update" in refused.value.hint


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", ".hidden", "a/b"])
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(SnapshotDamaged, match="which no snapshot has"):
        unpack(hostile(tarfile.TarInfo(name)), "x")


def test_a_link_is_refused() -> None:
    link = tarfile.TarInfo("runbook.yaml")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(SnapshotDamaged, match="which no snapshot has"):
        unpack(hostile(link), "x")


def test_without_a_database_it_is_no_snapshot() -> None:
    with pytest.raises(SnapshotDamaged, match="no database"):
        unpack(pack(HEAD, {"runbook.yaml": b""}), "x")


def hostile(member: tarfile.TarInfo) -> bytes:
    """A file with a right digest and a wrong member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(member)
    body = gzip.compress(buffer.getvalue())
    import json

    head = {**asdict(HEAD), "size": len(body), "sha256": sha256(body).hexdigest()}
    return MAGIC + f"{FORMAT}\n{json.dumps(head)}\n".encode() + body
