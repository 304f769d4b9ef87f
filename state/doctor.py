"""What can be said about a database that is suspected.

Nothing is changed, save that SQLite takes back what a writer that was killed left half-done.
"""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

from state import journal
from state.connection import explained, reading
from state.reading import read_snapshot
from state.replay import replay
from state.replay_facts import KEYS, tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state.model import JSON
    from state.replay_facts import Row

JSON_COLUMNS = frozenset({"spec", "evidence", "facts", "identity", "source"})
YOUNGER = frozenset({"rental", "approval"})
"""Tables with rows that a migration made of older ones: not each of them is told."""


def examine(path: Path) -> list[str]:
    """Every problem found, one sentence each; empty when all is well."""
    with explained(path):
        # Opened for reading alone, SQLite refuses a file beside which such a journal lies. A file
        # that is not there is not made.
        conn = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None)
        conn.row_factory = sqlite3.Row
        try:
            conn.execute("PRAGMA query_only = ON")
            # A word that no state has is told by name, by whoever reads it, not as damage.
            conn.execute("PRAGMA ignore_check_constraints = ON")
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
    events = journal.read(conn, limit=-1)
    tasks, attempts = replay(events)
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
    yield from _untold_needs(conn)
    for table, told_rows in tell(events).items():
        found = {
            str(row[KEYS[table]]): dict(row)
            for row in conn.execute(f"SELECT * FROM {table}")  # noqa: S608 (names of ours)
        }
        differing = sorted(_differing(found, told_rows, all_told=table not in YOUNGER))
        if differing:
            yield (
                f"The {table} table differs from what the events tell, for "
                f"{', '.join(differing[:5])}: it was altered by hand."
            )


def _differing(found: dict[str, Row], told: dict[str, Row], *, all_told: bool) -> Iterator[str]:
    for key in told.keys() | (found.keys() if all_told else set()):
        if (
            key not in found
            or key not in told
            or any(_value(found[key], name) != value for name, value in told[key].items())
        ):
            yield key


def _value(row: Row, name: str) -> JSON:
    return json.loads(row[name]) if name in JSON_COLUMNS else row.get(name)


def _untold_needs(conn: sqlite3.Connection) -> Iterator[str]:
    rows = conn.execute(
        "SELECT task.id, json_extract(need.value, '$[0]') FROM task, json_each(task.needs) AS need"
        " EXCEPT SELECT task, needs FROM dependency"
    ).fetchall()
    if rows:
        yield f"The needs of {rows[0][0]} are not in the dependency table: it was altered by hand."


def _ids(stored: tuple[object, ...], told: tuple[object, ...]) -> Iterator[str]:
    left = {str(getattr(record, "id", "")): record for record in stored}
    right = {str(getattr(record, "id", "")): record for record in told}
    for key in left.keys() | right.keys():
        if left.get(key) != right.get(key):
            yield key
