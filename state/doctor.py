"""What can be said about a database that is suspected; reads only."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from state import journal
from state.connection import explained, reading
from state.reading import read_snapshot
from state.replay import replay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def examine(path: Path) -> list[str]:
    """Every problem found, one sentence each; empty when all is well."""
    with explained(path):
        conn = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
        conn.row_factory = sqlite3.Row
        try:
            with reading(conn):  # events and tables of one revision, whoever writes meanwhile
                return list(_problems(conn))
        finally:
            conn.close()


def _problems(conn: sqlite3.Connection) -> Iterator[str]:
    damaged = [row[0] for row in conn.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    yield from (f"The file is damaged: {text}." for text in damaged)
    if damaged:
        return  # reading on would only repeat it
    for row in conn.execute("PRAGMA foreign_key_check"):
        yield f"A row of {row['table']} names a row of {row['parent']} that does not exist."
    broken = list(journal.broken_links(conn))
    if broken:
        yield (
            f"The event log was altered by hand: {len(broken)} events do not follow from the one "
            f"before, the first is number {broken[0]}."
        )
        return
    snapshot = read_snapshot(conn)
    tasks, attempts = replay(journal.read(conn, limit=-1))
    for name, stored, told in (
        ("task", snapshot.tasks, tasks),
        ("attempt", snapshot.attempts, attempts),
    ):
        differing = sorted(set(_ids(stored, told)))
        if differing:
            yield (
                f"The {name} table differs from what the events tell, for {', '.join(differing)}: "
                "it was altered by hand."
            )


def _ids(stored: tuple[object, ...], told: tuple[object, ...]) -> Iterator[str]:
    left = {str(getattr(record, "id", "")): record for record in stored}
    right = {str(getattr(record, "id", "")): record for record in told}
    for key in left.keys() | right.keys():
        if left.get(key) != right.get(key):
            yield key
