"""A check, and what it found, in a few words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMED_BY = ("key", "path", "glob", "url", "port", "python")
"""Arguments that say what a check looks at."""
BOUNDS = {
    "min": "at least",
    "above": "above",
    "max": "at most",
    "below": "below",
    "equals": "exactly",
}


def check_name(check: Mapping[str, Any]) -> str:
    """A check in a few words: its kind and what it looks at."""
    ((kind, args),) = check.items()
    about = [str(args[key]) for key in NAMED_BY if key in args]
    return " ".join([kind, *about[:2]])


def found(name: str, evidence: Mapping[str, Any]) -> str:
    """`gain.low is -0.2, wanted above 0 (/work/eval.json)`; `file /a: bytes 3, min_bytes 9`."""
    if {"key", "value", "wanted"} <= evidence.keys():
        wanted = bounds(evidence["wanted"])
        said = f"{evidence['key']} is {_plain(evidence['value'])}, wanted {wanted}"
        return f"{said} ({evidence['path']})"
    told = evidence.get("message") or evidence.get("found")
    rest = (
        f"{key} {value if isinstance(value, str) else _plain(value)}"
        for key, value in evidence.items()
        if key not in NAMED_BY
    )
    return f"{name}: {told or ', '.join(rest) or 'it says no more'}"


def bounds(wanted: Mapping[str, Any]) -> str:
    """`at least 1 and below 20`."""
    told = (f"{BOUNDS[key]} {_plain(wanted[key])}" for key in BOUNDS if key in wanted)
    return " and ".join(one.strip() for one in told)


def _plain(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return json.dumps(value)
    return f"{int(value):,}" if value == value // 1 else f"{value:,}"
