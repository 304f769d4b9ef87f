"""The only waiting there is: for a predicate, with a deadline and a name."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def wait_until(predicate: Callable[[], bool], what: str, *, seconds: float = 60.0) -> None:
    """Let the event loop turn until the predicate holds; fail by name at the deadline."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(0.01)
