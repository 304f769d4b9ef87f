"""The progress lines of an attempt: the newest, and the curves of its numbers. A local file."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MOST_POINTS = 2048
MOST_CURVES = 40
"""Names of numbers that are kept; a host could make up a new one in each line."""


class Metrics:
    """Follows one `progress` stream. Lines that are torn or not ours are passed over."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.latest: Mapping[str, Any] | None = None
        self.steps: list[float] = []
        self.curves: dict[str, list[float]] = {}
        """Each as long as `steps`; what a line did not tell is NaN."""
        self.notices: list[tuple[float, str]] = []
        """What it said in words, with how much was done by then."""
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

    @property
    def offset(self) -> int:
        """Bytes read so far."""
        return self._offset

    @property
    def loss(self) -> list[float]:
        """The loss, where it was told."""
        return [value for value in self.curves.get("loss", ()) if value == value]

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
        message, done = record.get("message"), record.get("done")
        if message and isinstance(message, str):
            at = float(done) if isinstance(done, int | float) else math.nan
            self.notices = [*self.notices[-19:], (at, message)]
        metrics = record.get("metrics")
        if record.get("kind") != "done" and isinstance(metrics, dict) and metrics:
            self._keep(float(done) if isinstance(done, int | float) else math.nan, metrics)

    def _keep(self, done: float, metrics: Mapping[str, Any]) -> None:
        """Every n-th line, n doubling as the run grows: a curve stays the size of a screen."""
        if self.steps and done <= self.steps[-1]:
            self._cut(done)  # a resume begins at a step that was told before
        if self._seen % self._stride == 0:
            told = _numbers(metrics)
            for name in told:
                if name not in self.curves and len(self.curves) < MOST_CURVES:
                    self.curves[name] = [math.nan] * len(self.steps)
            self.steps.append(done)
            for name, values in self.curves.items():
                values.append(told.get(name, math.nan))
            if len(self.steps) >= MOST_POINTS:
                self.steps = self.steps[::2]
                self.curves = {name: values[::2] for name, values in self.curves.items()}
                self._stride *= 2
        self._seen += 1

    def _cut(self, done: float) -> None:
        """Forget what lies at or after a step: it is told again."""
        left = next((i for i, step in enumerate(self.steps) if step >= done), len(self.steps))
        self.steps = self.steps[:left]
        self.curves = {name: values[:left] for name, values in self.curves.items()}

    def _keep_pace(self, record: Mapping[str, Any]) -> None:
        t, done = record.get("t"), record.get("done")
        if not isinstance(t, (int, float)) or not isinstance(done, (int, float)):
            return
        if self._pace and done < self._pace[-1][1]:  # another phase counts from zero
            self._pace.clear()
        self._pace.append((float(t), float(done)))
        del self._pace[:-60]


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Finite numbers by name; those in a list get the place they have in it."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        values = value[:32] if isinstance(value, list) else [value]
        for place, one in enumerate(values, start=1):
            if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one):
                found[f"{name}[{place}]" if isinstance(value, list) else name] = float(one)
    return found
