"""Prompt lookup: the drafter that costs nothing, and the floor a trained one has to clear.

It proposes what followed the most recent earlier occurrence of the last few tokens. Torch-free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class NgramIndex:
    """Where each n-gram of a growing sequence ended last; `propose` continues the newest match."""

    def __init__(self, *, longest: int = 3, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-gram sizes must satisfy 1 <= {shortest} <= {longest}")
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    def propose(self, tokens: Sequence[int], *, limit: int) -> list[int]:
        """Up to `limit` tokens expected after `tokens`, which only ever grows between calls."""
        self._extend(tokens)
        for size in self._sizes:
            if len(tokens) <= size:
                continue
            end = self._ends.get(tuple(tokens[-size:]))
            if end is not None:
                return list(tokens[end : end + limit])
        return []

    def _extend(self, tokens: Sequence[int]) -> None:
        # The n-gram that ends at the last token is left out: it would only find itself.
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
