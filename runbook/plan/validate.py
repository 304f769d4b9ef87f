"""Pydantic's findings as problems with a place in the file and the word that was meant."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from runbook.plan.parameters import parameter
from runbook.plan.problems import nearest
from runbook.plan.references import has_reference, references
from runbook.plan.wording import of_one_branch, said

if TYPE_CHECKING:
    from runbook.plan.yaml_reader import At, Document

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], data: Any, document: Document, at: At) -> M | None:
    """An instance of `model`, or None with the problems recorded.

    A value that still has a reference cannot be judged yet: what is said of the value is left out,
    and the answer is None without a problem. Of its key all can be said.
    """
    try:
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        misspelt = {
            (
                *found["loc"][:-1],
                nearest(str(found["loc"][-1]), _fields_at(model, found["loc"][:-1])),
            )
            for found in errors
            if found["type"] == "extra_forbidden"
        }
        placed = ((*_real_path(data, found), found) for found in errors)
        for path, value, found in of_one_branch(placed):
            # A key that is there under a slip of the pen is not also reported as missing.
            known_slip = found["type"] == "missing" and found["loc"] in misspelt
            about_keys = found["type"] in ("extra_forbidden", "missing")
            if (about_keys or not has_reference(value)) and not known_slip:
                _report(model, found, value, document, at, path)
        return None


def valid_part(model: type[M], data: Mapping[str, Any], missing: Mapping[str, Any]) -> M | None:
    """What can be judged of `data` although some of it is wrong: those keys are left out.

    `missing` stands in for keys that the model cannot do without. Reports nothing.
    """
    left = dict(data)
    for _ in range(2):
        try:
            return model.model_validate_json(json.dumps(left), strict=True)
        except ValidationError as error:
            wrong = {found["loc"][0] for found in error.errors() if found["loc"]}
            left = {key: value for key, value in left.items() if key not in wrong}
            left |= {key: value for key, value in missing.items() if key in wrong}
    return None


def _real_path(data: Any, found: Mapping[str, Any]) -> tuple[At, Any]:
    """Where it was found, without pydantic's marks for the branches of a union; what is there."""
    path: list[str | int] = []
    value, loc = data, found["loc"]
    for index, part in enumerate(loc):
        if (isinstance(value, Mapping) and part in value) or _indexes(part, value):
            value = value[part]
            path.append(part)
        elif found["type"] == "missing" and index == len(loc) - 1:
            return (*path, part), None
    return tuple(path), value


def _indexes(part: Any, value: Any) -> bool:
    return isinstance(value, list) and isinstance(part, int) and part < len(value)


def _report(
    model: type[BaseModel], found: Any, value: Any, document: Document, at: At, path: At
) -> None:
    kind = found["type"]
    name = (*at, *path)[-1] if (*at, *path) else ""
    if kind == "extra_forbidden":
        known = _fields_at(model, path[:-1])
        document.problem(
            (*at, *path),
            f"unknown key `{name}`; known here: {', '.join(known)}",
            suggestion=nearest(str(name), known),
            key=True,
        )
        return
    if kind == "missing":
        document.problem((*at, *path[:-1]), f"`{name}` is missing", key=True)
        return
    message = said(found, value, show=bool(path))
    if blamed := _parameter_at(document, (*at, *path)):
        _misfit(document, blamed, (*at, *path), message)
        return
    colon = "" if message.startswith("must ") else ":"
    named = next((part for part in reversed((*at, *path)) if isinstance(part, str)), "")
    each = "each of " if isinstance(name, int) else ""
    where = f"{each}`{named}`{colon} " if named else ""
    suggestion = ""
    if kind in ("literal_error", "enum"):
        options = [str(option).strip("'") for option in _options(found)]
        suggestion = nearest(str(value), options)
    is_key = "[key]" in found["loc"]
    document.problem((*at, *path), f"{where}{message}", suggestion=suggestion, key=is_key)


def _parameter_at(document: Document, at: At) -> str:
    """The parameter that the file has at this place; empty where the value is its own."""
    value = document.data
    for part in at:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return ""
    named = references(value) if isinstance(value, str) else ()
    declared = document.data.get("params") or {}
    found = (reference.key for reference in named if reference.kind == "param")
    return next((name for name in found if name in declared), "")


def _misfit(document: Document, name: str, at: At, message: str) -> None:
    """Told once, where it is declared, however many tasks use it."""
    if name in document.asks:
        return
    whose = f" of task `{at[1]}`" if at[0] == "tasks" else ""
    found = parameter(document, name)
    document.asks[name] = found.word()
    document.problem(
        ("params", name),
        f"parameter `{name}` does not fit `{at[-1]}`{whose}: {message}{found.told()}",
    )


def _options(found: Any) -> list[str]:
    expected = str(found.get("ctx", {}).get("expected", ""))
    return expected.replace(" or ", ", ").split(", ")


def _fields_at(model: type[BaseModel], path: At) -> list[str]:
    """The keys that are known at `path` below `model`."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is None:
            return []
        if isinstance(part, int):
            continue
        field = next(
            (f for name, f in current.model_fields.items() if part in (name, f.alias)), None
        )
        # The name of an entry in a mapping of models stays with the model of its entries.
        current = _model_in(field.annotation) if field is not None else current
    return [f.alias or name for name, f in current.model_fields.items()] if current else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, dict) or get_args(
        annotation
    ):
        for inner in get_args(annotation):
            if (found := _model_in(inner)) is not None:
                return found
    return None
