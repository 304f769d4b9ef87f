"""Identifiers and time stamps. Random ids do not collide when two copies of a state meet."""

from __future__ import annotations

import os
from datetime import UTC, datetime

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's: no I, L, O, U


def utc_now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime) -> str:
    """UTC ISO text with milliseconds; the one format in the database."""
    if moment.tzinfo is None:
        raise ValueError(f"the clock gave a time without a zone: {moment!r}")
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ulid(moment: datetime) -> str:
    """48 bits of time, 80 of chance: sorts by creation, is never guessed twice."""
    number = int(moment.timestamp() * 1000) << 80 | int.from_bytes(os.urandom(10))
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
