"""A large file that arrives in ranges, in any order, over several runs of a command.

Beside it lie `.NAME.partial`, reserved at its full size, and a journal with a line for each range
that is there and its SHA-256. What an earlier run left is used only for the same content (`tag`),
and each of its ranges only after it proved right: a torn or lost write is fetched again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from typing import TYPE_CHECKING, Self

from dflash.files import sync_folder, write_text

if TYPE_CHECKING:
    from pathlib import Path

PARTIAL, JOURNAL = ".partial", ".partial-journal"
PIECE = 1 << 20
"""One write: larger ones cost ext4 more processor time a byte."""


class PartialFile:
    """One file on its way. Ranges may be written by several threads; they never overlap."""

    def __init__(self, path: Path, *, size: int, tag: str) -> None:
        self.path, self.size = path, size
        path.parent.mkdir(parents=True, exist_ok=True)
        self._aside = path.with_name(f".{path.name}{PARTIAL}")
        self._journal = path.with_name(f".{path.name}{JOURNAL}")
        head = {"tag": tag, "size": size}
        self._known = _ranges(self._journal, head) if self._aside.exists() else {}
        if not self._known:
            self._aside.unlink(missing_ok=True)
        # Written anew: a line added to a torn one would be lost with it.
        kept = [json.dumps([*span, digest]) for span, digest in self._known.items()]
        write_text(self._journal, "\n".join([json.dumps(head), *kept, ""]))
        self._fd = os.open(self._aside, os.O_RDWR | os.O_CREAT, 0o644)
        self._lines = self._journal.open("a")
        self._lock = threading.Lock()
        if size:
            try:
                os.posix_fallocate(self._fd, 0, size)  # a full disk is found now
            except OSError as error:
                self.drop()
                error.filename = str(path)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        os.close(self._fd)

    def has(self, start: int, end: int) -> bool:
        """Whether an earlier run brought this range, and it is still as it was."""
        digest = self._known.get((start, end))
        return digest is not None and hashlib.sha256(self.read(start, end)).hexdigest() == digest

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self._fd, end - start, start)

    def write(self, start: int, data: bytes | memoryview) -> None:
        """The range, then its line: a kill in between costs this range."""
        digest = hashlib.sha256(data).hexdigest()
        at, view = start, memoryview(data)
        while view:
            written = os.pwrite(self._fd, view[:PIECE], at)
            at, view = at + written, view[written:]
        with self._lock:
            self._lines.write(json.dumps([start, at, digest]) + "\n")
            self._lines.flush()

    def finish(self) -> None:
        """All ranges are there and right: the file appears."""
        os.fsync(self._fd)
        self._aside.replace(self.path)
        self._journal.unlink(missing_ok=True)
        sync_folder(self.path.parent)

    def drop(self) -> None:
        """Keep nothing of it."""
        self._aside.unlink(missing_ok=True)
        self._journal.unlink(missing_ok=True)


def reserved(path: Path) -> int:
    """What an earlier run has on the disk for it."""
    aside = path.with_name(f".{path.name}{PARTIAL}")
    return aside.stat().st_size if aside.exists() else 0


def remove_partials(folder: Path) -> None:
    """Of files that are no longer wanted, or came whole after all."""
    for path in folder.rglob(f".*{PARTIAL}*"):
        path.unlink(missing_ok=True)


def _ranges(journal: Path, head: dict[str, object]) -> dict[tuple[int, int], str]:
    """What the journal tells of the same content; a torn last line is none."""
    found = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        lines = journal.read_text().splitlines()
        if json.loads(lines[0]) != head:
            return {}
        for line in lines[1:]:
            start, end, digest = json.loads(line)
            found[start, end] = str(digest)
    return found
