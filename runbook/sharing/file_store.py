"""A snapshot in a file: compared and replaced under a lock of its folder."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from runbook.errors import RunbookError
from runbook.sharing.place import Found, Moved
from state.mirror import write_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FileStore:
    """One file. Its folder is the lock, so that no lock file is left beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = str(path)

    def read(self) -> Found | None:
        """What lies there; a rename replaces it whole, so a reader needs no lock."""
        try:
            data = self.path.read_bytes()
            changed = self.path.stat().st_mtime
        except FileNotFoundError:
            return None
        return Found(data=data, tag=sha256(data).hexdigest(), age_s=max(0, time.time() - changed))

    def write(self, data: bytes, *, over: str | None) -> None:
        """Aside, fsync, rename, if `over` is still there."""
        if not self.path.parent.is_dir():
            raise RunbookError(
                f"There is no folder {self.path.parent}.",
                hint="Make it, or name another file: nothing was pushed.",
            )
        with alone(self.path.parent):
            found = self.read()
            if (found.tag if found else None) != over:
                raise Moved
            write_file(self.path, data)

    def beside(self, suffix: str) -> FileStore:
        """A neighbour in the same folder."""
        return FileStore(self.path.with_name(f"{self.path.name}.{suffix}"))

    def prove_conditions(self) -> None:
        """The lock above is the proof."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else of ours writes into the folder meanwhile; a dead one holds nothing."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
