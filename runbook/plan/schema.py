"""The JSON Schema of a runbook file, for editors: each step type's `with` and every check in it."""

from __future__ import annotations

import json
from typing import Any

from runbook.plan.shape import RunbookFile, TaskFile
from runbook.steps import STEP_TYPES
from runbook.steps.checks import CHECKS

# Wherever a value may stand, a reference to one may.
_REFERENCE = {"type": "string", "pattern": r"\$\{[^{}]+\}"}
_NARROW = ("integer", "number", "boolean")


def json_schema() -> dict[str, Any]:
    """Draft 2020-12, self-contained."""
    schema = RunbookFile.model_json_schema()
    defs: dict[str, Any] = schema.setdefault("$defs", {})
    task = _with_references(_take(TaskFile.model_json_schema(), defs))
    checks = {"type": "array", "items": {"$ref": "#/$defs/Check"}}
    for key in ("done_when", "ready_when"):
        task["properties"][key] = {**checks, "description": task["properties"][key]["description"]}
    task["properties"]["step"]["enum"] = sorted(STEP_TYPES)
    task["allOf"] = [_branch(name, defs) for name in sorted(STEP_TYPES)]
    defs["Task"] = task
    defs["Check"] = {"oneOf": [_check(name, defs) for name in sorted(CHECKS)]}
    schema["properties"]["tasks"] = {
        "type": "object",
        "description": "The graph.",
        "minProperties": 1,
        "propertyNames": {"pattern": "^[a-z][a-z0-9_-]{0,59}$"},
        "additionalProperties": {"$ref": "#/$defs/Task"},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _take(schema: dict[str, Any], defs: dict[str, Any]) -> dict[str, Any]:
    """A model's schema with its own definitions moved to the common ones."""
    for name, inner in schema.pop("$defs", {}).items():
        defs[f"task_{name}"] = _with_references(inner)
    text = json.dumps(schema).replace('"#/$defs/', '"#/$defs/task_')
    taken: dict[str, Any] = json.loads(text)
    return taken


def _branch(name: str, defs: dict[str, Any]) -> dict[str, Any]:
    """`with` as step type `name` wants it."""
    step = STEP_TYPES[name]
    args = _with_references(_take(step.Args.model_json_schema(), defs))
    args["description"] = step.__doc__ or ""
    defs[f"with_{name}"] = args
    then: dict[str, Any] = {"properties": {"with": {"$ref": f"#/$defs/with_{name}"}}}
    if args.get("required"):
        then["required"] = ["with"]
    return {"if": {"properties": {"step": {"const": name}}}, "then": then}


def _check(name: str, defs: dict[str, Any]) -> dict[str, Any]:
    args = _with_references(_take(CHECKS[name].model_json_schema(), defs))
    return {
        "type": "object",
        "properties": {name: args},
        "required": [name],
        "additionalProperties": False,
    }


def _with_references(schema: Any) -> Any:
    """Numbers, truth values and patterned texts may also be written as a reference."""
    if isinstance(schema, list):
        return [_with_references(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _NARROW or "pattern" in schema or "enum" in schema:
        kept = {key: schema[key] for key in ("title", "description", "default") if key in schema}
        narrow = {key: value for key, value in schema.items() if key not in kept}
        return {**kept, "anyOf": [narrow, _REFERENCE]}
    return {
        key: inner if key in ("default", "examples", "required") else _with_references(inner)
        for key, inner in schema.items()
    }
