"""What a JSON file has to hold for its reader: the keys that it will take, and of which kind.

Standard library only. A shape is a kind (`str`, `int`, `float` for any number, `bool`, `dict`,
`list`), None for null, a range of whole numbers (`COUNT`), a list of one shape (`[int]`), a tuple
of shapes of which one has to fit, or the keys of an object, each with a shape: `"note?"` may be
missing or null, `"*"` stands for every key. Other keys are not looked at.
"""

from __future__ import annotations

import json
import math
from typing import Any

KINDS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}
COUNT = range(1, 1 << 40)
OPEN = ("?", "*")
SHOWN = 40
"""Characters of a wrong value in a message."""


def misfit(value: Any, shape: Any, at: str = "") -> str:
    """The first place where a value is not of its shape, in words; empty when it is."""
    if isinstance(shape, tuple):
        found = [misfit(value, one, at) for one in shape]
        return found[0] if all(found) else ""
    kind = int if isinstance(shape, range) else shape if isinstance(shape, type) else type(shape)
    if not _is(value, kind) or (isinstance(shape, range) and value not in shape):
        least = f" of at least {shape.start}" if isinstance(shape, range) else ""
        return f"{at or 'it'} is {_shown(value)}, not {KINDS[kind]}{least}"
    if isinstance(shape, list):
        parts = ((part, shape[0], f"{at}[{place}]") for place, part in enumerate(value))
        return next(filter(None, (misfit(*part) for part in parts)), "")
    return _keys(value, shape, at) if isinstance(shape, dict) else ""


def _keys(found: dict[str, Any], shape: dict[str, Any], at: str) -> str:
    before = f"{at}." if at else ""
    lacks = [before + key for key in shape if not key.endswith(OPEN) and key not in found]
    if lacks:
        return f"it has no {', '.join(lacks)}"
    named = [(key.removesuffix("?"), one) for key, one in shape.items() if key != "*"]
    parts = [(n, one) for n, one in named if f"{n}?" not in shape or found.get(n) is not None]
    parts += [(name, shape["*"]) for name in found if "*" in shape]
    return next(filter(None, (misfit(found[n], one, before + n) for n, one in parts)), "")


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
