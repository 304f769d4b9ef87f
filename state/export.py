"""A database copied out whole, held against another one, and brought up to a later copy.

Two states are compared by their event logs: each event carries the hash of the one before, so
the same number with the same hash means the same past.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from state import journal
from state.connection import connect, explained, immediate, reading
from state.doctor import examine
from state.errors import RevisionMoved, StateError
from state.migrate import applied, bring_up
from state.schema import MIGRATIONS

if TYPE_CHECKING:
    from pathlib import Path

Relation: TypeAlias = Literal["same", "behind", "ahead", "diverged"]

GROWING = {"lease": "resource", "claim": "subject"}
"""Tables whose token must not shrink, with their key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How ours stands to theirs."""

    relation: Relation
    ours: int
    theirs: int
    common: int
    """The last revision that both have; 0 when they share nothing."""


def copy_database(source: Path, target: Path) -> tuple[int, str]:
    """One revision, whole, in one file, by SQLite's own backup; its number and hash."""
    with explained(source):
        conn = connect(source)
        copy = sqlite3.connect(target)
        try:
            conn.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            head = journal.head(copy)
        finally:
            copy.close()
            conn.close()
    with target.open("rb") as written:
        os.fsync(written.fileno())
    return head


def make_current(path: Path) -> None:
    """Bring a copy to our schema and prove that it is sound, before anything of it is used.

    Raises SchemaTooNew, DatabaseUnusable, or StateError for one that was tampered with.
    """
    with explained(path):
        conn = connect(path)
        try:
            if not applied(conn, path):
                raise StateError(f"{path.name} holds no state.", "It was not used.")
            bring_up(conn, path, first=_nothing)
            conn.execute("PRAGMA journal_mode = DELETE")
            strange = _schema(conn) ^ _reference_schema()
        finally:
            conn.close()
    if strange:
        raise StateError(
            f"The database has tables, triggers or views that are not ours: "
            f"{', '.join(sorted(name for name, _ in strange))[:200]}.",
            "It was not used: somebody altered it.",
        )
    problems = examine(path)
    if problems:
        raise StateError(f"The database is not sound: {problems[0]}", "It was not used.")


def compare(ours: Path, theirs: Path) -> Compared:
    """Whether one is the past of the other."""
    with explained(ours):
        left = connect(ours)
        right = connect(theirs)
        try:
            with reading(left):
                return _compared(left, right)
        finally:
            left.close()
            right.close()


def _compared(left: sqlite3.Connection, right: sqlite3.Connection) -> Compared:
    mine, yours = journal.head(left), journal.head(right)
    common = _last_common(left, right, min(mine[0], yours[0]))
    relation: Relation
    if mine == yours:
        relation = "same"
    elif common == mine[0]:
        relation = "behind"
    elif common == yours[0]:
        relation = "ahead"
    else:
        relation = "diverged"
    return Compared(relation=relation, ours=mine[0], theirs=yours[0], common=common)


def _last_common(left: sqlite3.Connection, right: sqlite3.Connection, top: int) -> int:
    """By halving: hashes are chained, so once they differ they differ from there on."""
    low, high = 0, top
    while low < high:
        middle = (low + high + 1) // 2
        if hash_at(left, middle) == hash_at(right, middle):
            low = middle
        else:
            high = middle - 1
    return low


def hash_at(conn: sqlite3.Connection, seq: int) -> str:
    """The hash of one event; empty where there is none."""
    row = conn.execute("SELECT hash FROM event WHERE seq = ?", [seq]).fetchone()
    return "" if row is None else str(row[0])


def has_event(path: Path, seq: int, event_hash: str) -> bool:
    """Whether this database's past contains exactly that event."""
    with explained(path):
        conn = connect(path)
        try:
            return bool(event_hash) and hash_at(conn, seq) == event_hash
        finally:
            conn.close()


def fast_forward(path: Path, later: Path, *, expect: int) -> int:
    """Make the database what `later` is, in one transaction that other processes see whole.

    `later` must contain our past (`compare` says `behind`). Our events stay as they are and its
    further ones are appended. Raises RevisionMoved when somebody wrote here meanwhile.
    """
    with explained(path):
        conn = connect(path)
        try:
            conn.execute("ATTACH DATABASE ? AS later", [str(later)])
            with immediate(conn):
                found, event_hash = journal.head(conn)
                if found != expect:
                    raise RevisionMoved(expect, found, journal.read(conn, after=expect))
                past = conn.execute("SELECT hash FROM later.event WHERE seq = ?", [found])
                if past.fetchone()[0] != event_hash:
                    raise StateError("The other state does not contain this one's past.")
                conn.execute("PRAGMA defer_foreign_keys = ON")
                for table in _tables(conn):
                    _take_over(conn, table, after=found)
                return journal.head(conn)[0]
        finally:
            conn.close()


def _take_over(conn: sqlite3.Connection, table: str, *, after: int) -> None:
    """Table and column names come from our own schema."""
    info = list(conn.execute(f"PRAGMA main.table_info({table})"))
    names = [row["name"] for row in info]
    # Some are shown in the order of their creation, which only the row number tells.
    listed = ", ".join(names if _has_own_key(conn, table, info) else ["rowid", *names])
    if table == "event":
        conn.execute(
            f"INSERT INTO main.event ({listed}) SELECT {listed} FROM later.event"  # noqa: S608
            " WHERE seq > ? ORDER BY seq",
            [after],
        )
        return
    if table in GROWING:
        _keep_tokens(conn, table, names)
        return
    conn.execute(f"DELETE FROM main.{table}")  # noqa: S608
    conn.execute(f"INSERT INTO main.{table} ({listed}) SELECT {listed} FROM later.{table}")  # noqa: S608


def _has_own_key(conn: sqlite3.Connection, table: str, info: list[sqlite3.Row]) -> bool:
    """Whether the table has no row number apart from its columns."""
    query = "SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = ?"
    made = str(conn.execute(query, [table]).fetchone()[0]).upper()
    numbered = any(row["pk"] and row["type"] == "INTEGER" for row in info)
    return numbered or "WITHOUT ROWID" in made


def _keep_tokens(conn: sqlite3.Connection, table: str, names: list[str]) -> None:
    """The later holder, but never a smaller token: a process here may still carry ours."""
    key = GROWING[table]
    for row in list(conn.execute(f"SELECT * FROM later.{table}")):  # noqa: S608
        mine = conn.execute(
            f"SELECT token FROM main.{table} WHERE {key} = ?",  # noqa: S608
            [row[key]],
        ).fetchone()
        values = {name: row[name] for name in names}
        if mine is not None:
            values["token"] = max(mine[0], row["token"])
        marks = ", ".join(f":{name}" for name in names)
        conn.execute(f"INSERT OR REPLACE INTO main.{table} VALUES ({marks})", values)  # noqa: S608


def _tables(conn: sqlite3.Connection) -> list[str]:
    rows = conn.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")
    return sorted(row[0] for row in rows if not row[0].startswith(("sqlite_", "_sqlite_")))


def _schema(conn: sqlite3.Connection) -> set[tuple[str, str]]:
    rows = conn.execute("SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_master")
    return {(row[0], row[1]) for row in rows if "_sqlite_" not in row[0]}


def _reference_schema() -> set[tuple[str, str]]:
    """What our migrations make of nothing."""
    from sqlite_utils import Database

    conn = sqlite3.connect(":memory:")
    try:
        for migration in MIGRATIONS.values():
            migration(Database(conn, recursive_triggers=False, execute_plugins=False))
        return _schema(conn)
    finally:
        conn.close()


def _nothing(_conn: sqlite3.Connection) -> None:
    """A copy has its first rows."""
