"""A line of so many bytes a second that all streams of a server share."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 18


class Line:
    """Every thread asks for its turn before it moves bytes; 0 is as fast as it goes."""

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self._free = 0.0
        self._lock = threading.Lock()

    def wait(self, size: int) -> None:
        """Until so many bytes had their turn."""
        if not self.rate:
            return
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self.rate
            turn = self._free
        time.sleep(max(0.0, turn - time.monotonic()))

    def pieces(self, data: memoryview) -> Iterator[memoryview]:
        """The data, each piece when its turn is over; in one where the line has no limit."""
        step = CHUNK if self.rate else max(len(data), 1)
        for start in range(0, len(data), step):
            self.wait(len(data[start : start + step]))
            yield data[start : start + step]
