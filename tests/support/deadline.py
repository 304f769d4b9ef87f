"""Waiting in tests without an event loop: for a predicate, with a deadline and a name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")


def wait_for(value: Callable[[], T], *, limit_s: float = 60.0, what: str) -> T:
    """The first true value; fails by name at the deadline."""
    deadline = time.monotonic() + limit_s
    while not (found := value()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_s:g} s in vain for {what}; last: {found!r}")
        time.sleep(0.02)
    return found
