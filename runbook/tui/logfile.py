"""A log file read by line number without holding it: 64 kB blocks and how many lines precede each.

A million lines cost a few thousand integers. Only what is asked for is read, a torn or endless
last line is fine, and a file that shrank or was replaced is read anew.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 1 << 16
LONGEST_LINE = 8192
"""Bytes shown of one line; nobody scrolls further, and a line may be gigabytes long."""


class LogFile:
    """Random access to the lines of a file that grows."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.generation = 0
        """Grows when the file was replaced: what was read before is void."""
        self._file: BinaryIO | None = None
        self._reset()

    def _reset(self) -> None:
        self._before = array("Q", [0])  # newlines before each block
        self._newlines = 0
        self._indexed = 0
        self._last_byte = b"\n"
        self._positions: dict[int, tuple[int, list[int]]] = {}
        self.size = 0

    @property
    def line_count(self) -> int:
        """Lines indexed so far; an unfinished last one counts."""
        return self._newlines + (0 if self._last_byte == b"\n" else 1)

    @property
    def complete(self) -> bool:
        """Whether all bytes of the last look are indexed."""
        return self._indexed >= self.size

    @property
    def indexed(self) -> int:
        """Bytes looked at so far."""
        return self._indexed

    @property
    def unfinished(self) -> int:
        """Bytes behind the last newline: a line that is still being written."""
        if self._last_byte == b"\n" or not self._newlines:
            return 0 if self._last_byte == b"\n" else self._indexed
        return self._indexed - self._offset(self._newlines)

    def read(self, offset: int, size: int) -> bytes:
        """Raw bytes, never beyond what is indexed."""
        if self._file is None:
            return b""
        return os.pread(self._file.fileno(), max(0, min(size, self._indexed - offset)), offset)

    def poll(self, budget: int = 1 << 25) -> bool:
        """Index what was added, at most `budget` bytes; whether anything moved."""
        if self.path is None:
            return False
        file = self._open()
        if file is None:
            return False
        self.size = os.fstat(file.fileno()).st_size
        start = self._indexed
        while self._indexed < self.size and self._indexed - start < budget:
            # Never past the end of a block, so that `_before` has one entry for each.
            room = BLOCK - self._indexed % BLOCK
            data = os.pread(file.fileno(), room, self._indexed)
            if not data:
                break
            self._positions.pop(self._indexed // BLOCK, None)
            self._newlines += data.count(b"\n")
            self._last_byte = data[-1:]
            self._indexed += len(data)
            if self._indexed % BLOCK == 0:
                self._before.append(self._newlines)
        return self._indexed != start

    def line(self, number: int) -> str:
        """One line as it was meant to be seen: what a carriage return overwrote is left out."""
        file = self._file
        if file is None or not 0 <= number < self.line_count:
            return ""
        start = self._offset(number)
        end = self._offset(number + 1) - 1 if number < self._newlines else self._indexed
        data = os.pread(file.fileno(), min(end - start, LONGEST_LINE), start)
        shown = data.decode("utf-8", "replace").rstrip("\r")
        return shown.rpartition("\r")[2]

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO | None:
        assert self.path is not None
        try:
            now = self.path.stat()
        except OSError:
            return self._file
        if self._file is not None:
            was = os.fstat(self._file.fileno())
            same = (was.st_ino, was.st_dev) == (now.st_ino, now.st_dev)
            if same and now.st_size >= self._indexed:
                return self._file
            self.close()
            self._reset()
            self.generation += 1
        try:
            self._file = self.path.open("rb")
        except OSError:
            return None
        return self._file

    def _offset(self, number: int) -> int:
        """Where line `number` begins: just behind newline `number`."""
        if number == 0:
            return 0
        block = bisect_left(self._before, number) - 1
        return block * BLOCK + self._newlines_in(block)[number - self._before[block] - 1] + 1

    def _newlines_in(self, block: int) -> list[int]:
        valid = min(BLOCK, self._indexed - block * BLOCK)
        known = self._positions.get(block)
        if known is not None and known[0] == valid:
            return known[1]
        assert self._file is not None
        data = os.pread(self._file.fileno(), valid, block * BLOCK)
        found = []
        at = data.find(b"\n")
        while at >= 0:
            found.append(at)
            at = data.find(b"\n", at + 1)
        if len(self._positions) >= 8:
            self._positions.pop(next(iter(self._positions)))
        self._positions[block] = (valid, found)
        return found
