"""The wall clock of this process, stepped as by a person or a time server."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def stepping_clock() -> Iterator[Callable[[float], None]]:
    """Call it with the seconds that `time.time()` is to be off from now on."""
    real, off = time.time, [0.0]

    def step(seconds: float) -> None:
        off[0] = seconds

    time.time = lambda: real() + off[0]
    try:
        yield step
    finally:
        time.time = real
