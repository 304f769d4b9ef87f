"""How long to leave a host alone that failed: growing, jittered, and visible."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

JITTER = 0.25


class Breaker:
    """One stream of tries for all who wait on a dead machine.

    A pause is shortened by chance, never prolonged: many clients of one machine spread their
    tries, and "next try in N s" stays true.
    """

    def __init__(
        self,
        *,
        first_s: float,
        most_s: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.failures = 0
        self._first_s = first_s
        self._most_s = most_s
        self._clock = clock
        self._chance = chance
        self._until = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the next try; 0 when nothing keeps anyone from it."""
        return max(0.0, self._until - self._clock()) if self.failures else 0.0

    def failed(self) -> None:
        """A try failed: the next one comes after a longer pause."""
        doublings = min(self.failures, 16)
        pause = min(self._most_s, self._first_s * 2**doublings)
        self._until = self._clock() + pause * (1 - JITTER * self._chance())
        self.failures += 1

    def answered(self) -> None:
        """It works again."""
        self.failures, self._until = 0, 0.0
