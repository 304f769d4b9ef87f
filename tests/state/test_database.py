"""Files that cannot be used: each is told apart, named, and left as it was."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from state import DatabaseBusy, DatabaseUnusable, SchemaTooNew, open_store
from state import connection as connection_module
from state.connection import connect, ensure_wal, journal_mode
from state.migrate import bring_up
from state.schema import MIGRATIONS
from tests.state import processes
from tests.state.builders import graph, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlite_utils import Database

    from state import Store


def test_connections_are_durable_and_checked(store: Store) -> None:
    conn = store._conn()
    assert journal_mode(conn) == "wal"
    assert conn.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert conn.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_a_file_that_is_no_database_is_left_alone(db: Path) -> None:
    db.parent.mkdir()
    db.write_bytes(b"my thesis" * 1000)
    with pytest.raises(DatabaseUnusable, match="not a database") as caught:
        open_store(db, actor="x")
    assert "Move it aside" in caught.value.hint
    assert db.read_bytes() == b"my thesis" * 1000


def test_a_database_of_something_else_is_left_alone(db: Path) -> None:
    db.parent.mkdir()
    conn = sqlite3.connect(db)
    conn.execute("CREATE TABLE recipes (name TEXT)")
    conn.commit()
    conn.close()
    before = db.read_bytes()
    with pytest.raises(DatabaseUnusable, match="recipes"):
        open_store(db, actor="x")
    assert db.read_bytes() == before


def test_a_torn_database_is_told_and_not_recreated(db: Path) -> None:
    with open_store(db, actor="x") as store:
        load(store, graph("; ".join(f"t{n}" for n in range(200))))
    data = bytearray(db.read_bytes())
    assert len(data) > 40_000
    data[8192:40_000] = b"\xff" * (40_000 - 8192)
    db.write_bytes(data)
    with (
        pytest.raises(DatabaseUnusable, match=r"damaged|cannot be read"),
        open_store(db, actor="x") as store,
    ):
        store.snapshot()
    assert db.read_bytes() == data


def test_an_empty_file_is_a_first_start(db: Path) -> None:
    db.parent.mkdir()
    db.touch()
    with open_store(db, actor="x") as store:
        assert store.revision() == 1


def test_a_newer_schema_is_not_touched(db: Path) -> None:
    open_store(db, actor="x").close()
    conn = sqlite3.connect(db)
    conn.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
        " VALUES ('state', '0099_far_future', '')"
    )
    conn.commit()
    conn.close()
    with pytest.raises(SchemaTooNew, match="0099_far_future") as caught:
        open_store(db, actor="x")
    assert "Update this installation" in caught.value.hint


def test_a_lock_that_is_kept_is_told(
    store: Store, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "BUSY_SECONDS", 0.05)
    keeper = connect(db)
    keeper.execute("BEGIN IMMEDIATE")
    with open_store(db, actor="other") as other:
        assert other.snapshot().revision == 1  # readers never wait
        with pytest.raises(DatabaseBusy, match="locked"), other.write() as tx:
            tx.add_note("waits in vain")
    keeper.execute("ROLLBACK")
    keeper.close()
    assert store.revision() == 1


def test_a_full_disk_loses_the_write_and_nothing_else(store: Store) -> None:
    load(store, graph("a"))
    before = store.snapshot()
    conn = store._conn()
    pages = conn.execute("PRAGMA page_count").fetchone()[0]
    conn.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DatabaseUnusable, match="full") as caught, store.write() as tx:
        tx.add_note("x" * 100_000)
    assert "Free some space" in caught.value.hint
    conn.execute("PRAGMA max_page_count = 1073741823")
    assert store.snapshot() == before
    with store.write() as tx:
        tx.add_note("room again")


@pytest.fixture
def sealed() -> Iterator[Path]:
    """A database in a folder that only its owner can write to."""
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: nobody else gets in there
        db = Path(name).resolve() / "state.db"
        open_store(db, actor="owner").close()
        db.chmod(0o444)
        db.parent.chmod(0o555)
        yield db
        db.parent.chmod(0o755)


def test_a_folder_that_cannot_be_written_is_named(sealed: Path) -> None:
    with pytest.raises(DatabaseUnusable) as caught, not_root():
        open_store(sealed, actor="visitor")
    assert str(sealed) in str(caught.value)
    assert "permissions" in caught.value.hint


def test_a_visitor_beside_a_live_owner_reads_but_does_not_write(sealed: Path) -> None:
    with (
        open_store(sealed, actor="owner") as owner,
        not_root(),
        open_store(sealed, actor="visitor") as visitor,
    ):
        assert visitor.snapshot() == owner.snapshot()
        with pytest.raises(DatabaseUnusable, match="cannot be opened for writing"):
            write_note(visitor)


def write_note(store: Store) -> None:
    with store.write() as tx:
        tx.add_note("hello")


@contextmanager
def not_root() -> Iterator[None]:
    """Root may write anywhere; for a moment be nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseUnusable, match="cannot be made"):
        open_store(tmp_path / "file" / "state.db", actor="x")


def test_a_journal_mode_that_does_not_stick_is_refused(tmp_path: Path) -> None:
    conn = sqlite3.connect(":memory:")
    with pytest.raises(DatabaseUnusable, match="stays 'memory'"):
        ensure_wal(conn, tmp_path)
    conn.close()


def nothing(conn: sqlite3.Connection) -> None:
    """No first rows."""


def test_a_migration_backs_up_first(store: Store, db: Path) -> None:
    load(store, graph("a"))

    def add_column(db: Database) -> None:
        db.table("task").add_column("owner", str)

    conn = store._conn()
    bring_up(conn, db, first=nothing, steps={**MIGRATIONS, "9999_owner": add_column})
    assert "owner" in [row["name"] for row in conn.execute("PRAGMA table_info(task)")]
    backup = sqlite3.connect(db.with_name(f"state.db.{next(reversed(MIGRATIONS))}.bak"))
    assert backup.execute("SELECT count(*) FROM task").fetchone()[0] == 1
    assert "owner" not in [row[1] for row in backup.execute("PRAGMA table_info(task)")]
    backup.close()
    assert list(db.parent.glob("*.partial")) == []
    with pytest.raises(SchemaTooNew):
        open_store(db, actor="old")


def test_a_migration_that_fails_leaves_the_old_schema(store: Store, db: Path) -> None:
    load(store, graph("a"))
    before = store.snapshot()

    def half(db: Database) -> None:
        db.execute("DROP TABLE lease")

    def fails(db: Database) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        bring_up(
            store._conn(), db, first=nothing, steps={**MIGRATIONS, "9998": half, "9999": fails}
        )
    assert store.snapshot() == before
    with open_store(db, actor="again") as again:
        assert again.snapshot() == before


def test_a_look_costs_less_than_the_schema_tool_saying_its_version(store: Store, db: Path) -> None:
    load(store, graph("; ".join(f"t{n}" for n in range(200))))
    look = (
        "import sys, pathlib, state\n"
        "store = state.open_store(pathlib.Path(sys.argv[1]), actor='x')\n"
        "assert len(store.snapshot().tasks) == 200"
    )
    ours = min(processor_seconds("-c", look, str(db)) for _ in range(3))
    tool = min(processor_seconds("-m", "sqlite_utils", "--version") for _ in range(3))
    # The whole of `runbook status` may take 1.5 of it; the state's part is to leave room.
    assert ours < 0.8 * tool


def processor_seconds(*args: str) -> float:
    """Of a whole Python process; unlike elapsed time it hardly depends on what else runs here."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": str(processes.ROOT)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_reading_does_not_load_the_schema_tool(store: Store, db: Path) -> None:
    load(store, graph("a"))
    code = (
        "import sys, pathlib, state\n"
        "store = state.open_store(pathlib.Path(sys.argv[1]), actor='x')\n"
        "with store.write() as tx: tx.add_note('hi')\n"
        "print(store.snapshot().tasks[0].id, sorted({'sqlite_utils', 'click'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(db)],
        env={**os.environ, "PYTHONPATH": str(processes.ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "a []\n"
