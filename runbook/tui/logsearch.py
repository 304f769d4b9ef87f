"""Which lines of a growing log match, found piece by piece: a million lines never wait."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runbook.tui.logfile import LogFile

PIECE = 1 << 20
FAILURE = re.compile(
    rb"traceback \(most recent|\b(?:error|exception|failed|failure|fatal|panic|oom)\b"
    rb"|[a-z]error\b|out of memory|no space left|segmentation fault|\bkilled\b|core dumped"
    rb"|assertion",
    re.IGNORECASE,
)


def pattern_of(needle: str) -> re.Pattern[bytes]:
    """The text itself, in any case unless it has a capital letter."""
    flags = re.IGNORECASE if needle == needle.lower() else 0
    return re.compile(re.escape(needle.encode()), flags)


class Matches:
    """Numbers of the lines that match, in order, as far as the file was looked through."""

    def __init__(self, file: LogFile, pattern: re.Pattern[bytes]) -> None:
        self.file = file
        self.pattern = pattern
        self.lines = array("Q")
        self._generation = file.generation
        self._at = 0
        self._line = 0

    @property
    def complete(self) -> bool:
        """Whether every whole line of the last look was seen."""
        return self._at >= self.file.indexed - self.file.unfinished

    def poll(self, budget: int = 1 << 23) -> bool:
        """Look through at most `budget` more bytes; whether there was anything."""
        if self._generation != self.file.generation:
            self.__init__(self.file, self.pattern)  # type: ignore[misc]
        start, end = self._at, self.file.indexed
        while self._at < end and self._at - start < budget:
            data = self.file.read(self._at, min(PIECE, end - self._at))
            cut = data.rfind(b"\n") + 1
            if not cut:
                if len(data) < PIECE:
                    break  # an unfinished line: wait for its end
                cut = len(data)  # one line longer than a piece
            self._take(data[:cut])
            self._at += cut
        return self._at != start

    def _take(self, data: bytes) -> None:
        counted = 0
        line = self._line
        search = self.pattern.search
        at = 0
        while (found := search(data, at)) is not None:
            where = found.start()
            line += data.count(b"\n", counted, where)
            counted = where
            if not self.lines or self.lines[-1] != line:
                self.lines.append(line)
            at = data.find(b"\n", where)
            if at < 0:
                break
        self._line += data.count(b"\n")

    def after(self, line: int) -> int | None:
        """The first match below a line."""
        at = bisect_right(self.lines, line)
        return self.lines[at] if at < len(self.lines) else None

    def before(self, line: int) -> int | None:
        """The last match above a line."""
        at = bisect_left(self.lines, line)
        return self.lines[at - 1] if at else None

    def has(self, line: int) -> bool:
        """Whether a line matches."""
        at = bisect_left(self.lines, line)
        return at < len(self.lines) and self.lines[at] == line

    def rank(self, line: int) -> int:
        """Which match it is, from 1."""
        return bisect_left(self.lines, line) + 1
