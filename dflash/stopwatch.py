"""Durations on the clock that counts: the GPU's own stream, or the host's where there is none.

A host that only queues work would measure nothing but the queueing; marks are events in the
stream, and asking for a duration waits for its end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    Mark = float | torch.cuda.Event


def mark(device: torch.device) -> Mark:
    """This moment, after everything queued on the current stream so far."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@dataclass(frozen=True, slots=True)
class Span:
    """From one mark to a later one."""

    start: Mark
    end: Mark

    @property
    def over(self) -> bool:
        """Whether its length can be told without waiting."""
        return isinstance(self.end, float) or self.end.query()

    @property
    def seconds(self) -> float:
        if isinstance(self.start, float) or isinstance(self.end, float):
            assert isinstance(self.start, float) and isinstance(self.end, float)  # noqa: PT018
            return self.end - self.start
        self.end.synchronize()
        return self.start.elapsed_time(self.end) / 1e3
