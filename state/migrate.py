"""Brings a database to the newest schema: one process at a time, with a backup first.

Whether anything is to be done is found out with one plain SELECT; `sqlite_utils`, whose
`Migrations` keeps the record, is imported only when there is.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from state.connection import ensure_wal, immediate, journal_mode
from state.errors import DatabaseBusy, DatabaseUnusable, SchemaTooNew
from state.schema import MIGRATION_SET, MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from sqlite_utils import Database

    Steps = Mapping[str, Callable[[Database], None]]

LOCK_SECONDS = 60.0


def applied(conn: sqlite3.Connection, path: Path) -> list[str]:
    """The names of the migrations this database has, oldest first."""
    tables = {row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "_sqlite_migrations" not in tables:
        if tables:
            raise DatabaseUnusable(
                f"{path} is a database of something else: it has the tables "
                f"{', '.join(sorted(tables)[:5])}.",
                "It was not changed. Choose another workspace, or move the file aside.",
            )
        return []
    rows = conn.execute(
        "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY rowid",
        [MIGRATION_SET],
    )
    return [str(row[0]) for row in rows]


def is_current(conn: sqlite3.Connection, path: Path, steps: Steps = MIGRATIONS) -> bool:
    """True when there is nothing to migrate; raises for a schema from the future."""
    names = applied(conn, path)
    unknown = [name for name in names if name not in steps]
    if unknown:
        raise SchemaTooNew(str(path), unknown)
    return len(names) == len(steps)


def bring_up(
    conn: sqlite3.Connection,
    path: Path,
    *,
    first: Callable[[sqlite3.Connection], None],
    steps: Steps = MIGRATIONS,
) -> None:
    """Leave the database current and in WAL. `first` fills the tables of a new one."""
    if is_current(conn, path, steps) and journal_mode(conn) == "wal":
        return
    with _only_one(path):
        ensure_wal(conn, path)
        names = applied(conn, path)
        if names and not is_current(conn, path, steps):
            _back_up(conn, path, names[-1])
        with immediate(conn):
            # Again under the write lock: a process without our flock may be older than it.
            if not is_current(conn, path, steps):
                new = not applied(conn, path)
                _apply(conn, steps)
                if new:
                    first(conn)


def _apply(conn: sqlite3.Connection, steps: Steps) -> None:
    from sqlite_utils import Database, Migrations

    migrations = Migrations(MIGRATION_SET)
    for name, function in steps.items():
        migrations(name=name)(function)
    # Its own transaction would be a deferred one; inside ours it uses savepoints.
    migrations.apply(Database(conn, recursive_triggers=False, execute_plugins=False))


def _back_up(conn: sqlite3.Connection, path: Path, last: str) -> Path:
    """A copy by SQLite's own backup, aside and renamed: a plain copy would miss the log."""
    target = path.with_name(f"{path.name}.{last}.bak")
    aside = path.with_name(f"{path.name}.{last}.{os.getpid()}.partial")
    copy = sqlite3.connect(aside)
    try:
        conn.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
    with aside.open("rb") as written:
        os.fsync(written.fileno())
    aside.replace(target)
    return target


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Two first starts may race; the kernel frees the lock of whoever dies."""
    folder = path.parent / "locks"
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder / "migrate.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DatabaseBusy(
                        f"{path} is being migrated by another process for {LOCK_SECONDS:g} s.",
                        "Wait for it, or end it: the migration is rolled back, not left half.",
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
