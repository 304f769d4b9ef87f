"""A state that an older version left is brought up with nothing lost, and the copy of it kept."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from state import TaskState, open_store
from state.doctor import examine
from state.replay import replay

OLD = Path(__file__).parent / "golden" / "state-0001.sql"


def left_by_the_first_version(folder: Path) -> Path:
    db = folder / "state.db"
    conn = sqlite3.connect(db)
    conn.executescript(OLD.read_text(encoding="utf-8"))
    conn.execute("PRAGMA journal_mode = WAL")
    conn.close()
    return db


def test_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    db = left_by_the_first_version(tmp_path)
    before = sqlite3.connect(db)
    events = before.execute("SELECT seq, hash FROM event ORDER BY seq").fetchall()
    before.close()
    with open_store(db, actor="new") as store:
        snapshot = store.snapshot()
        assert {task.id: task.state.value for task in snapshot.tasks} == {
            "a": "done",
            "b": "ready",
            "s": "ready",
            "c": "blocked",
            "m": "blocked",
        }
        assert replay(store.events(limit=-1)) == (snapshot.tasks, snapshot.attempts)
        conn = store._conn()
        kept = [tuple(row) for row in conn.execute("SELECT seq, hash FROM event ORDER BY seq")]
        assert kept == events
        needs = {tuple(row) for row in conn.execute("SELECT * FROM dependency")}
        assert ("c", "b", "ok") in needs
        assert ("c", "s", "any") in needs
        (approval,) = snapshot.approvals
        assert (approval.task, approval.about, approval.actor) == ("m", "gate", "old")
        (rental,) = snapshot.rentals
        assert (rental.role, rental.machine, rental.until) == ("box", "me@old.example:22", None)
        assert [epoch.epoch for epoch in snapshot.epochs] == ["e1"]
        with store.write() as tx:
            tx.move_task("b", TaskState.SKIPPED, expect={TaskState.READY})
        assert store.snapshot().task("c").reason == "waits for s"
    assert examine(db) == []
    backup = sqlite3.connect(db.with_name("state.db.0001_initial.bak"))
    tables = {row[0] for row in backup.execute("SELECT name FROM sqlite_master")}
    backup.close()
    assert "task" in tables
    assert "dependency" not in tables


def test_tables_beside_the_graph_that_were_altered_by_hand_are_named(tmp_path: Path) -> None:
    db = left_by_the_first_version(tmp_path)
    open_store(db, actor="new").close()
    conn = sqlite3.connect(db)
    conn.execute("UPDATE artifact SET size = 4")
    conn.execute("UPDATE host_epoch SET epoch = 'other'")
    conn.execute("DELETE FROM note")
    conn.execute("DELETE FROM dependency WHERE task = 'b'")
    conn.commit()
    conn.close()
    said = "\n".join(examine(db))
    for table in ("artifact", "host_epoch", "note", "needs of b"):
        assert table in said
