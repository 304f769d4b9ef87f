"""Copies of a state: compared by their past, taken over whole, refused when altered."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from state import RevisionMoved, StateError, TaskState, claims, open_store
from state.doctor import examine
from state.export import compare, copy_database, fast_forward, make_current
from tests.state.builders import graph, load

if TYPE_CHECKING:
    from pathlib import Path

    from state import Store


def advance(store: Store, task: str) -> None:
    with store.write() as tx:
        tx.move_task(task, TaskState.ACTIVE, expect=[TaskState.READY])
        tx.create_attempt(task, host="box", epoch=None)
        tx.add_note(f"{task} began")


@pytest.fixture
def copy(store: Store, db: Path, tmp_path: Path) -> Path:
    load(store, graph("a; b; c: a b"))
    target = tmp_path / "copy.db"
    copy_database(db, target)
    return target


def test_a_copy_is_the_same_in_one_file(copy: Path, db: Path) -> None:
    assert compare(db, copy).relation == "same"
    assert not copy.with_name("copy.db-wal").exists()
    assert examine(copy) == []


def test_behind_is_brought_up_while_others_have_it_open(copy: Path, db: Path, store: Store) -> None:
    with open_store(copy, actor="elsewhere") as other:
        advance(other, "a")
        advance(other, "b")
        with other.write() as tx:
            claims.take(tx, "c", "elsewhere", for_s=60)
        later = other.snapshot()
    found = compare(db, copy)
    assert (found.relation, found.common) == ("behind", found.ours)
    version = store.data_version()
    make_current(copy)
    assert fast_forward(db, copy, expect=found.ours) == later.revision
    assert store.data_version() != version
    assert store.snapshot() == later
    assert examine(db) == []
    advance_more(store)


def advance_more(store: Store) -> None:
    """The log goes on where the other one ended."""
    with store.write() as tx:
        tx.add_note("here again")
    assert examine(store.path) == []


def test_a_write_in_between_stops_the_take_over(copy: Path, db: Path, store: Store) -> None:
    with open_store(copy, actor="elsewhere") as other:
        advance(other, "a")
    looked_at = store.revision()
    advance(store, "b")
    before = store.snapshot()
    with pytest.raises(RevisionMoved):
        fast_forward(db, copy, expect=looked_at)
    with pytest.raises(StateError, match="does not contain this one's past"):
        fast_forward(db, copy, expect=store.revision())
    assert store.snapshot() == before


def test_two_pasts_are_told_with_what_they_share(copy: Path, db: Path, store: Store) -> None:
    common = store.revision()
    with open_store(copy, actor="elsewhere") as other:
        advance(other, "a")
    advance(store, "a")
    found = compare(db, copy)
    assert (found.relation, found.common) == ("diverged", common)


def test_ahead(copy: Path, db: Path, store: Store) -> None:
    advance(store, "a")
    assert compare(db, copy).relation == "ahead"


def test_fence_tokens_never_shrink_by_it(copy: Path, db: Path, store: Store) -> None:
    for _ in range(3):
        store.release(store.acquire("engine", "here"))
    # The other one knows of none of these: as if the history without leases had gone on there.
    conn = sqlite3.connect(copy)
    conn.execute("INSERT INTO lease VALUES ('engine', 'there', 1, 'then', NULL)")
    conn.commit()
    conn.close()
    conn = sqlite3.connect(db)
    conn.execute("DROP TRIGGER event_is_kept")
    conn.execute("DELETE FROM event WHERE kind LIKE 'lease.%'")
    conn.commit()
    conn.close()
    with open_store(copy, actor="elsewhere") as other:
        advance(other, "a")
    fast_forward(db, copy, expect=store.revision())
    token = store.acquire("engine", "again").token
    assert token > 3


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER sly AFTER INSERT ON note BEGIN DELETE FROM note; END",
        "CREATE VIEW sly AS SELECT 1",
        "CREATE TABLE sly (x)",
        "DROP TRIGGER event_is_final",
    ],
)
def test_a_copy_with_another_schema_is_not_used(copy: Path, statement: str) -> None:
    conn = sqlite3.connect(copy)
    conn.execute(statement)
    conn.close()
    with pytest.raises(StateError, match="not ours"):
        make_current(copy)


def test_a_copy_with_altered_rows_is_not_used(copy: Path) -> None:
    conn = sqlite3.connect(copy)
    conn.execute('UPDATE task SET definition = \'{"argv": ["evil"]}\'')
    conn.commit()
    conn.close()
    with pytest.raises(StateError, match="not sound"):
        make_current(copy)


def test_something_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database, by far" * 100)
    with pytest.raises(StateError, match="not a database"):
        make_current(tmp_path / "x.db")
