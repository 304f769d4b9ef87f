"""Opens SQLite the one way we trust it, and says plainly what is wrong with a file.

Nothing here knows the tables. `sqlite_utils` is not imported: reading must start fast.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from state.errors import DatabaseBusy, DatabaseUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEAST_BYTES = 1 << 16
"""SQLite's shared memory takes 32 KiB."""
BUSY_SECONDS = 15.0
"""How long a writer waits for another; every transaction here takes milliseconds."""


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file (not about our SQL) into ones a person can act on."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # a constraint of ours fired: a bug, shown with its traceback
    except sqlite3.OperationalError as error:
        raise _operational(path, error) from error
    except sqlite3.DatabaseError as error:
        raise DatabaseUnusable(
            f"{path} is damaged or not a database: {error}.",
            "It was not changed. Move it aside and restore a backup (*.bak beside it) or "
            "see what can be read: `runbook doctor`.",
        ) from error


def _operational(path: Path, error: sqlite3.OperationalError) -> Exception:
    name = getattr(error, "sqlite_errorname", "") or ""
    text = str(error)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DatabaseBusy(
            f"{path} is locked: another process kept it for more than {BUSY_SECONDS:g} s.",
            "Nothing was written. Look for a suspended runbook process: `fuser` names it.",
        )
    # Without room for its shared memory, SQLite only tells of an input or output error.
    if name.startswith("SQLITE_FULL") or (name.startswith("SQLITE_IOERR") and _is_full(path)):
        return DatabaseUnusable(
            f"The disk of {path} is full; nothing was written.", "Free some space and repeat."
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return DatabaseUnusable(
            f"{path} cannot be opened for writing: {text}.",
            f"Even reading needs to write beside it; check the permissions of {path.parent}.",
        )
    if name.startswith(("SQLITE_IOERR", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_PROTOCOL")):
        return DatabaseUnusable(
            f"{path} cannot be read or written: {text} ({name}).",
            "Check the disk (dmesg); then `runbook doctor`.",
        )
    return error


def _is_full(path: Path) -> bool:
    try:
        left = os.statvfs(path.parent)
    except OSError:
        return False
    return left.f_bavail * left.f_frsize < LEAST_BYTES


def connect(path: Path, *, busy_seconds: float | None = None) -> sqlite3.Connection:
    """A connection in autocommit: transactions begin only where `immediate` says so."""
    with explained(path):
        conn = sqlite3.connect(
            path,
            timeout=BUSY_SECONDS if busy_seconds is None else busy_seconds,
            isolation_level=None,
            check_same_thread=False,  # closed by the thread that closes the store; used by one
        )
        try:
            conn.row_factory = sqlite3.Row
            conn.execute("PRAGMA foreign_keys = ON")
            # NORMAL may lose the last commit at power loss, and with it "this was launched".
            conn.execute("PRAGMA synchronous = FULL")
        except BaseException:
            conn.close()
            raise
    return conn


def journal_mode(conn: sqlite3.Connection) -> str:
    return str(conn.execute("PRAGMA journal_mode").fetchone()[0])


def ensure_wal(conn: sqlite3.Connection, path: Path) -> None:
    """Set the write-ahead log and read it back: some file systems silently keep the old mode."""
    conn.execute("PRAGMA journal_mode = WAL")
    found = journal_mode(conn)
    if found != "wal":
        raise DatabaseUnusable(
            f"{path} cannot use a write-ahead log: the journal mode stays {found!r}.",
            "Keep the workspace on a local disk.",
        )


@contextmanager
def immediate(conn: sqlite3.Connection) -> Iterator[None]:
    """A write transaction that holds the lock from its first statement.

    A deferred one fails at once when it upgrades after somebody else wrote, whatever the timeout.
    """
    try:
        conn.execute("BEGIN IMMEDIATE")
        yield
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


@contextmanager
def reading(conn: sqlite3.Connection) -> Iterator[None]:
    """Several SELECTs over one revision."""
    if conn.in_transaction:  # inside a write: already one revision
        yield
        return
    conn.execute("BEGIN")
    try:
        yield
    finally:
        conn.execute("ROLLBACK")
