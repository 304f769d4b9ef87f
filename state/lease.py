"""Who may act: a kernel lock proves life, a token that only grows proves currency.

The lock is `flock` on a file of its own: it dies with its process, so nobody compares clocks
or waits for an expiry. The token in the database stops a writer that was replaced while it
slept: each of its writes names its token, and only the newest is accepted.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from state.errors import LeaseHeld, LeaseLost
from state.model import Lease

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from state.transaction import Transaction

GRACE_SECONDS = 0.3  # longer than the instant for which `is_live` itself holds the lock


class HolderLock:
    """The kernel lock of one resource, held as long as this object is not closed."""

    def __init__(self, folder: Path, resource: str) -> None:
        from urllib.parse import quote

        folder.mkdir(exist_ok=True)
        self.path = folder / f"{quote(resource, safe='')}.lock"
        # Not inherited by the commands we start: the lease must end with us, not with them.
        self._descriptor: int | None = os.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def take(self, *, grace_seconds: float = GRACE_SECONDS) -> bool:
        """True when the lock is ours, hence the previous holder dead or done."""
        deadline = time.monotonic() + grace_seconds
        while True:
            try:
                fcntl.flock(self._fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.01)
            else:
                return True

    def is_free(self) -> bool:
        try:
            fcntl.flock(self._fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._fileno(), fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        """Give it up. The file stays: unlinking it would let two hold `the` lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _fileno(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.path} was closed")
        return self._descriptor


def held_error(conn: sqlite3.Connection, resource: str) -> LeaseHeld:
    row = conn.execute(
        "SELECT holder, acquired_at FROM lease WHERE resource = ? AND released_at IS NULL",
        [resource],
    ).fetchone()
    # Without a row: it has the lock and is about to write itself in, or to go.
    holder, since = (row[0], row[1]) if row else ("a process that gave no name yet", "just now")
    return LeaseHeld(resource, str(holder), str(since))


def record(tx: Transaction, resource: str, holder: str) -> Lease:
    """Write the new holder with the next token. The caller has the kernel lock."""
    row = tx.execute(
        "SELECT holder, token, released_at FROM lease WHERE resource = ?", [resource]
    ).fetchone()
    token = row["token"] + 1 if row else 1
    tx.execute(
        "INSERT INTO lease (resource, holder, token, acquired_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (resource) DO UPDATE SET holder = excluded.holder, token = excluded.token,"
        " acquired_at = excluded.acquired_at, released_at = NULL",
        [resource, holder, token, tx.at],
    )
    payload: dict[str, object] = {"holder": holder, "token": token}
    if row and row["released_at"] is None:
        payload["taken_over_from"] = row["holder"]  # it died without a word
    tx.event("lease.acquired", resource, payload)
    return Lease(resource=resource, holder=holder, token=token, acquired_at=tx.at)


def require(conn: sqlite3.Connection, lease: Lease) -> None:
    """Raise unless this is still the newest token of the resource."""
    row = conn.execute(
        "SELECT token FROM lease WHERE resource = ? AND released_at IS NULL", [lease.resource]
    ).fetchone()
    if row is None or row[0] != lease.token:
        raise LeaseLost(lease.resource, lease.token, row[0] if row else None)


def forget(tx: Transaction, lease: Lease) -> bool:
    """Mark it released, if it is still ours."""
    changed = tx.execute(
        "UPDATE lease SET released_at = ? WHERE resource = ? AND token = ? AND released_at IS NULL",
        [tx.at, lease.resource, lease.token],
    ).rowcount
    if changed:
        tx.event("lease.released", lease.resource, {"holder": lease.holder, "token": lease.token})
    return bool(changed)
