"""Which split a row belongs to: by a hash of its id, so that order and later rows move none.

A small set would leave the last splits empty by chance; there the floor lowers their bound to the
highest hashes of the ids at hand. The bounds are part of the set's recipe.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Names in order, each with the lowest hash that belongs to it; the first begins at 0."""

    names: tuple[str, ...]
    bounds: tuple[float, ...]

    @classmethod
    def over(cls, ids: Iterable[str], shares: dict[str, float], *, floor: int) -> Splits:
        """Bounds by share, each later split lowered until it has `floor` of these ids.

        The floor is at most a quarter of the rows, so that the first split stays the largest.
        """
        names = list(shares)
        hashes = sorted(map(hash_of, ids), reverse=True)
        floor = min(floor, len(hashes) // (4 * max(1, len(names) - 1)))
        bounds = [0.0] * len(names)
        top, used = 1.0, 0
        for place in range(len(names) - 1, 0, -1):
            bound = max(top - shares[names[place]], 0.0)
            if sum(bound <= value < top for value in hashes) < floor:
                bound = hashes[used + floor - 1]
            used = sum(value >= bound for value in hashes)
            bounds[place] = top = bound
        return cls(names=tuple(names), bounds=tuple(bounds))

    def of(self, row_id: str) -> str:
        value = hash_of(row_id)
        for name, bound in zip(reversed(self.names), reversed(self.bounds), strict=True):
            if value >= bound:
                return name
        return self.names[0]

    def as_dict(self) -> dict[str, Any]:
        return dict(zip(self.names, self.bounds, strict=True))


def hash_of(row_id: str) -> float:
    """Uniform in [0, 1), the same on every machine."""
    digest = hashlib.sha256(row_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def parse_shares(text: str) -> dict[str, float]:
    """`train=0.9,heldout=0.1`; shares sum to 1."""
    shares: dict[str, float] = {}
    for word in text.split(","):
        name, _, share = word.strip().partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            raise UsageError(
                f"--split {word!r} is no NAME=SHARE", "Write it as train=0.9,heldout=0.1."
            ) from None
        if not name.isidentifier() or name == "parts" or not 0 < shares[name] <= 1:
            raise UsageError(f"--split {word!r}: a plain name and a share of (0, 1]")
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise UsageError(f"--split {text}: the shares sum to {sum(shares.values()):g}, not 1")
    return shares
