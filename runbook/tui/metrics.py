"""The progress lines of an attempt: the newest, and the curve of its loss. Reads a local file."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_POINTS = 2048


class Metrics:
    """Follows one `progress` stream. Lines that are torn or not ours are passed over."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.latest: Mapping[str, Any] | None = None
        self.loss: list[float] = []
        self._stride = 1
        self._seen = 0
        self._offset = 0
        self._rest = b""
        self._pace: list[tuple[float, float]] = []

    def poll(self, budget: int = 1 << 20) -> bool:
        """Read what was added, at most `budget` bytes; whether there was anything."""
        if self.path is None:
            return False
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self.__init__(self.path)  # type: ignore[misc]
                file.seek(self._offset)
                data = file.read(budget)
        except OSError:
            return False
        if not data:
            return False
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > budget:  # no line of ours is that long
            self._rest = b""
        for line in lines:
            self._take(line)
        return bool(lines)

    def eta(self) -> float | None:
        """Seconds to the end at the pace of the last lines, or None while unknown."""
        if self.latest is None or len(self._pace) < 2:
            return None
        (t0, done0), (t1, done1) = self._pace[0], self._pace[-1]
        total = self.latest.get("total")
        if not isinstance(total, (int, float)) or t1 <= t0 or done1 <= done0:
            return None
        return max(0.0, (total - done1) * (t1 - t0) / (done1 - done0))

    def _take(self, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            return
        if not isinstance(record, dict):
            return
        self.latest = record
        self._keep_pace(record)
        metrics = record.get("metrics")
        loss = metrics.get("loss") if isinstance(metrics, dict) else None
        if isinstance(loss, float | int) and not isinstance(loss, bool) and math.isfinite(loss):
            self._keep_loss(float(loss))

    def _keep_loss(self, loss: float) -> None:
        """Every n-th point, n doubling as the run grows: the curve stays the size of a screen."""
        if self._seen % self._stride == 0:
            self.loss.append(loss)
            if len(self.loss) >= MOST_POINTS:
                self.loss = self.loss[::2]
                self._stride *= 2
        self._seen += 1

    def _keep_pace(self, record: Mapping[str, Any]) -> None:
        t, done = record.get("t"), record.get("done")
        if not isinstance(t, (int, float)) or not isinstance(done, (int, float)):
            return
        if self._pace and done < self._pace[-1][1]:  # another phase counts from zero
            self._pace.clear()
        self._pace.append((float(t), float(done)))
        del self._pace[:-60]
