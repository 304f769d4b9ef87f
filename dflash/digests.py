"""A set of 64-bit digests, each with a small number beside it, in a few bytes an entry. Pure."""

from __future__ import annotations

from array import array

FIRST_SIZE = 1 << 12


class DigestTable:
    """Open addressing over two flat arrays: 18 to 36 bytes an entry, where a dict takes 150."""

    def __init__(self) -> None:
        self._count = 0
        self._make(FIRST_SIZE)

    def __len__(self) -> int:
        return self._count

    def add(self, digest: int, value: int = 0) -> int | None:
        """Note a digest; the number that it was first noted with, None when it is new.

        Args:
            value: From 0 to 254.
        """
        place = self._place(digest)
        if self._values[place]:
            return self._values[place] - 1
        self._digests[place], self._values[place] = digest, value + 1
        self._count += 1
        if self._count * 2 > len(self._digests):
            self._grow()
        return None

    def _place(self, digest: int) -> int:
        place = digest & self._mask
        while self._values[place] and self._digests[place] != digest:
            place = (place + 1) & self._mask
        return place

    def _grow(self) -> None:
        before = zip(self._digests, self._values, strict=True)
        self._make(2 * len(self._digests))
        for digest, value in before:
            if value:
                place = self._place(digest)
                self._digests[place], self._values[place] = digest, value

    def _make(self, size: int) -> None:
        self._mask = size - 1
        self._digests, self._values = array("Q", bytes(8 * size)), array("B", bytes(size))
