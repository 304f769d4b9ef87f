"""The event log: append, read, and prove that nobody edited it by hand."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from state.model import JSON, Event

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping


def canonical(value: JSON) -> str:
    """The one text of a JSON value: hashes and equal rows depend on it.

    Evidence comes from hosts: bytes that were no UTF-8 stay as escapes, and numbers that JSON
    does not have (a loss of NaN) become words, so that no answer of a host can stop a write.
    """
    try:
        text = _dumps(value)
    except ValueError:
        text = _dumps(_finite(value))
    return text.encode("utf-8", "backslashreplace").decode()


def clean(text: str) -> str:
    """Text that SQLite can store in a column: what was no UTF-8 becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _dumps(value: JSON) -> str:
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    )


def _finite(value: JSON) -> JSON:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def head(conn: sqlite3.Connection) -> tuple[int, str]:
    """Number and hash of the last event; 0 and nothing before the first."""
    row = conn.execute("SELECT seq, hash FROM event ORDER BY seq DESC LIMIT 1").fetchone()
    return (int(row[0]), str(row[1])) if row else (0, "")


def link(prev: str, seq: int, *fields: str | None) -> str:
    """The hash of an event over its fields and the hash before it."""
    from hashlib import sha256  # reading the state needs no hashes and starts without them

    return sha256(canonical([prev, seq, *fields]).encode()).hexdigest()


def append(
    conn: sqlite3.Connection,
    last: tuple[int, str],
    *,
    at: str,
    actor: str,
    kind: str,
    subject: str,
    task: str | None,
    payload: Mapping[str, JSON],
) -> tuple[int, str]:
    """Add the next event inside the caller's transaction; gives the new head."""
    seq, prev = last[0] + 1, last[1]
    text = canonical(payload)
    digest = link(prev, seq, at, actor, kind, subject, task, text)
    conn.execute(
        "INSERT INTO event (seq, at, actor, kind, subject, task, payload, prev, hash)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [seq, at, actor, kind, subject, task, text, prev, digest],
    )
    return seq, digest


LARGEST = (1 << 63) - 1
"""A larger number is none to SQLite."""


def read(
    conn: sqlite3.Connection, *, after: int = 0, limit: int = 1000, task: str | None = None
) -> list[Event]:
    """Events with a larger number than `after`, oldest first."""
    rows = conn.execute(
        "SELECT seq, at, actor, kind, subject, task, payload FROM event"
        " WHERE seq > :after AND (:task IS NULL OR task = :task) ORDER BY seq LIMIT :limit",
        {"after": min(after, LARGEST), "limit": min(limit, LARGEST), "task": task},
    )
    return [
        Event(
            seq=row[0],
            at=row[1],
            actor=row[2],
            kind=row[3],
            subject=row[4],
            task=row[5],
            payload=json.loads(row[6]),
        )
        for row in rows
    ]


def broken_links(conn: sqlite3.Connection) -> Iterator[int]:
    """The numbers of events that do not follow from the one before: edited, or one is missing."""
    prev, expected = "", 1
    query = (
        "SELECT seq, at, actor, kind, subject, task, payload, prev, hash FROM event ORDER BY seq"
    )
    for row in conn.execute(query):
        if row["seq"] != expected or row["prev"] != prev or row["hash"] != link(prev, *row[:7]):
            yield int(row["seq"])
        prev, expected = row["hash"], row["seq"] + 1
