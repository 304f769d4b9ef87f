"""`Store`: the one door to the database. Reads are snapshots; writes go through `write()`."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

from state import ids, journal
from state import lease as leases
from state.connection import connect, explained, immediate
from state.errors import DatabaseUnusable, RevisionMoved, StateError
from state.filesystem import refuse_network
from state.migrate import bring_up
from state.reading import Known, read_snapshot
from state.writing import Tx

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from pathlib import Path

    from state.filesystem import Mount
    from state.model import Event, Lease, Snapshot


class _TakenBack(Exception):
    """Ends a rehearsal."""


class Store:
    """A task graph on disk. Safe to share between threads: each has a connection of its own."""

    def __init__(self, path: Path, *, actor: str, clock: Callable[[], datetime]) -> None:
        self.path = path
        self.actor = actor
        self._clock = clock
        self._local = threading.local()
        self._guard = threading.Lock()
        self._connections: list[tuple[weakref.ref[threading.Thread], sqlite3.Connection]] = []
        self._locks: dict[str, leases.HolderLock] = {}
        self._closed = False

    # -- reading --------------------------------------------------------------------------------

    def snapshot(self, known: Known | None = None) -> Snapshot:
        """Everything, consistent, at one revision; `known` is what this caller read before.

        Without it, what this thread read before: an engine looks many times a round.
        """
        if known is None:
            known = self._local.__dict__.setdefault("known", Known())
        with explained(self.path):
            return read_snapshot(self._conn(), known)

    def revision(self) -> int:
        """The number of the last event."""
        with explained(self.path):
            return journal.head(self._conn())[0]

    def data_version(self) -> int:
        """Moves when *another* connection commits; the cheapest way to notice that."""
        with explained(self.path):
            return int(self._conn().execute("PRAGMA data_version").fetchone()[0])

    def events(self, after: int = 0, limit: int = 1000, task: str | None = None) -> list[Event]:
        """Oldest first, with numbers above `after`."""
        with explained(self.path):
            return journal.read(self._conn(), after=after, limit=limit, task=task)

    # -- writing --------------------------------------------------------------------------------

    @contextmanager
    def write(self, *, expect_rev: int | None = None, lease: Lease | None = None) -> Iterator[Tx]:
        """One transaction: everything in the block and its events, or nothing of it.

        `expect_rev` refuses when the graph moved since it was looked at; `lease` when the writer
        was replaced. On the way out, blocked and ready tasks are brought up to date.
        """
        conn = self._conn()
        if conn.in_transaction:
            raise StateError(
                "A write was begun inside another write of the same thread.",
                "Use the transaction that is open.",
            )
        with explained(self.path), immediate(conn):
            found = journal.head(conn)[0]
            if expect_rev is not None and found != expect_rev:
                raise RevisionMoved(expect_rev, found, journal.read(conn, after=expect_rev))
            if lease is not None:
                leases.require(conn, lease)
            tx = Tx(conn, actor=self.actor, clock=self._clock)
            yield tx
            tx.settle()

    @contextmanager
    def rehearse(self, told: list[Event], *, expect_rev: int | None = None) -> Iterator[Tx]:
        """As `write`, with the events it would leave put into `told`, and then taken back."""
        with suppress(_TakenBack), self.write(expect_rev=expect_rev) as tx:
            before = tx.revision
            yield tx
            tx.settle()
            told += journal.read(self._conn(), after=before, limit=-1)
            raise _TakenBack

    # -- leases ---------------------------------------------------------------------------------

    def acquire(self, resource: str, holder: str) -> Lease:
        """Become the one who acts on `resource`; a dead holder is replaced at once."""
        lock = leases.HolderLock(self._lock_folder, resource)
        try:
            if not lock.take():
                with explained(self.path):
                    raise leases.held_error(self._conn(), resource)
            with self.write() as tx:
                lease = leases.record(tx, resource, holder)
        except BaseException:
            lock.close()
            raise
        with self._guard:
            self._locks[resource] = lock
        return lease

    def release(self, lease: Lease) -> None:
        """Give it back; does nothing when it was lost before."""
        try:
            with self.write() as tx:
                leases.forget(tx, lease)
        finally:
            with self._guard:
                lock = self._locks.pop(lease.resource, None)
            if lock is not None:
                lock.close()

    def is_live(self, resource: str) -> bool:
        """Whether some process holds the resource right now, by the kernel's word."""
        lock = leases.HolderLock(self._lock_folder, resource)
        try:
            return not lock.is_free()
        finally:
            lock.close()

    @property
    def _lock_folder(self) -> Path:
        return self.path.parent / "locks"

    # -- connections ----------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections of all threads and let go of all leases."""
        with self._guard:
            self._closed = True
            for lock in self._locks.values():
                lock.close()
            self._locks.clear()
            for _, conn in self._connections:
                conn.close()
            self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _conn(self) -> sqlite3.Connection:
        conn: sqlite3.Connection | None = getattr(self._local, "conn", None)
        if conn is not None and not self._closed:
            return conn
        with self._guard:
            if self._closed:
                raise StateError(f"The store of {self.path} was closed.", "Open it again.")
            self._drop_dead()
            conn = self._local.conn = connect(self.path)
            self._connections.append((weakref.ref(threading.current_thread()), conn))
        return conn

    def _drop_dead(self) -> None:
        """Close what ended threads left; a pool of short-lived ones must not pile up files."""
        alive = []
        for thread, conn in self._connections:
            owner = thread()
            if owner is not None and owner.is_alive():
                alive.append((thread, conn))
            else:
                conn.close()
        self._connections = alive


def open_store(
    path: Path,
    *,
    actor: str,
    clock: Callable[[], datetime] = ids.utc_now,
    mounts: Iterable[Mount] | None = None,
) -> Store:
    """Open the database at `path`, creating or migrating it if need be.

    `mounts` replaces the mount table of this machine.
    """
    path = path.resolve()
    refuse_network(path, mounts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseUnusable(
            f"The folder {path.parent} cannot be made: {error.strerror}.",
            "Choose another workspace or correct its permissions.",
        ) from error
    store = Store(path, actor=actor, clock=clock)
    try:
        with explained(path):
            bring_up(store._conn(), path, first=lambda conn: _first(conn, actor, clock))  # noqa: SLF001
    except BaseException:
        store.close()
        raise
    return store


def _first(conn: sqlite3.Connection, actor: str, clock: Callable[[], datetime]) -> None:
    """The first event of a workspace gives it its identity."""
    tx = Tx(conn, actor=actor, clock=clock)
    tx.set_meta("workspace_id", ids.ulid(clock()).lower())
