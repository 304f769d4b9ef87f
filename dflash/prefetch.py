"""The next inputs, made by a thread while the current ones are in work: the device never waits."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Made = TypeVar("Made")


class Prefetch(Generic[Made]):
    """`make` of each number in order, up to `depth` ahead; an error comes out at its place."""

    def __init__(
        self, numbers: Sequence[int], make: Callable[[int], Made], *, depth: int = 2
    ) -> None:
        self._numbers, self._make = numbers, make
        self.left = len(numbers)
        """How many are still to be taken."""
        self._ready: queue.Queue[Made | BaseException] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
        self._thread.start()

    def take(self) -> Made:
        found = self._ready.get()
        if isinstance(found, BaseException):
            raise found
        self.left -= 1
        return found

    def close(self) -> None:
        """Nothing more is wanted."""
        self._closed.set()
        while self._thread.is_alive():  # it may be waiting for room
            try:
                self._ready.get(timeout=0.05)
            except queue.Empty:
                continue

    def _work(self) -> None:
        try:
            for number in self._numbers:
                if self._closed.is_set():
                    return
                self._ready.put(self._make(number))
        except BaseException as error:  # noqa: BLE001 (raised where it is taken)
            self._ready.put(error)
