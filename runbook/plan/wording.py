"""What pydantic finds, in the words of whoever writes a runbook file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runbook.plan.yaml_reader import At

_KINDS = {
    "string": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}
_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_LONGEST = 60


def said(found: Mapping[str, Any], value: Any, *, show: bool) -> str:
    """One finding as a sentence, with the value where it is short."""
    kind, context = found["type"], found.get("ctx", {})
    if kind == "value_error":  # ours: it names the value
        return str(found["msg"]).removeprefix("Value error, ")
    message = f"must {_wanted(kind, context) or _bare(found['msg'])}"
    shown = json.dumps(value, ensure_ascii=False)
    if show and len(shown) < _LONGEST:
        message += f"; found {shown}"
        if kind in ("list_type", "tuple_type") and not isinstance(value, dict | list):
            message += f"; write [{shown}]"
    return message


def _wanted(kind: str, context: Mapping[str, Any]) -> str:
    if kind in _LIMITS:
        return "be " + _LIMITS[kind].format(**context)
    if kind in ("literal_error", "enum"):
        return f"be {context['expected']}"
    if kind in ("too_short", "string_too_short"):
        least = context["min_length"]
        return "not be empty" if least == 1 else f"have at least {least} entries"
    word = _KINDS.get(kind.partition("_")[0]) if kind.endswith(("_type", "_parsing")) else None
    return f"be {word}" if word else ""


def _bare(message: str) -> str:
    """What has no words of its own here, at least without the words of a form on a screen."""
    for words in ("Input should be ", "Value should be "):
        message = message.removeprefix(words)
    return "be " + message.removeprefix("a valid ")


def of_one_branch(
    errors: Iterable[tuple[At, Any, Mapping[str, Any]]],
) -> list[tuple[At, Any, Mapping[str, Any]]]:
    """One finding for each place: a union has one for each of its types, and most say nothing.

    Inside of a value more is known than of the whole; of the whole, our own words tell most.
    """
    kept: dict[At, tuple[At, Any, Mapping[str, Any]]] = {}
    every = list(errors)
    for error in sorted(every, key=lambda error: _rank(error[2])):
        deeper = any(other[0][: len(error[0])] == error[0] != other[0] for other in every)
        if not deeper:
            kept.setdefault(error[0], error)
    return list(kept.values())


def _rank(found: Mapping[str, Any]) -> int:
    if found["type"] in ("value_error", "extra_forbidden", "missing"):
        return 0
    return 2 if found.get("ctx", {}).get("expected") == "''" else 1
