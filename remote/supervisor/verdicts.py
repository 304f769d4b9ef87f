"""What a check answers: pass, fail or unknown, and what was found."""

from __future__ import annotations

from typing import Any, Tuple

from remote.supervisor.base import JSON

Verdict = Tuple[str, JSON]


SHOWN = 2000  # characters of output kept as evidence


def verdict(good: bool, **evidence: Any) -> Verdict:
    return ("pass" if good else "fail"), evidence


def dotted(value: Any, key: str) -> Any:
    for part in key.split("."):
        if isinstance(value, list):
            value = value[int(part)]
        else:
            if part not in value:
                raise ValueError(f"no field {key!r}")
            value = value[part]
    return value
