"""References in a runbook: `${param.x}`, `${host.root}`, `${workspace}`, `${task.t.out.k}`.

Parameters are put in when the file is loaded, the others when a step is planned
(`resolve`). There is no expression language; `$${` stands for a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runbook.plan.yaml_reader import At

_TOKEN = re.compile(r"\$\$\{|\$\{(?P<name>[^{}]*)\}|\$\{")
_MEMBER = r"(?:@[A-Za-z0-9_-]+)?(?:\[[A-Za-z0-9._,-]+\])?"
_TASK = re.compile(rf"task\.(?P<task>[A-Za-z0-9_-]+{_MEMBER})\.out\.(?P<key>[A-Za-z0-9_.-]+)")
HOST_KEYS = ("root", "work")
WORDS = frozenset({"argv", "env"})
WORD_LISTS = frozenset({"command", "extra"})
"""Of a server; a check is called `command` too, but that one is no list."""


class ReferenceUnresolved(Exception):
    """A reference has no value now."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One `${...}`."""

    name: str
    kind: str
    """param, each, host, workspace, task; `unknown` when none of them; `open` without a `}`."""
    task: str = ""
    key: str = ""


def parse_reference(name: str) -> Reference:
    """What stands between the braces."""
    if name.startswith("param."):
        return Reference(name=name, kind="param", key=name.removeprefix("param."))
    if name.startswith("each."):
        return Reference(name=name, kind="each", key=name.removeprefix("each."))
    if name.startswith("host.") and name.removeprefix("host.") in HOST_KEYS:
        return Reference(name=name, kind="host", key=name.removeprefix("host."))
    if name == "workspace":
        return Reference(name=name, kind="workspace")
    if found := _TASK.fullmatch(name):
        return Reference(name=name, kind="task", task=found["task"], key=found["key"])
    return Reference(name=name, kind="unknown")


def references(text: str) -> Iterator[Reference]:
    """All references of a text, in order."""
    for found in _TOKEN.finditer(text):
        if found["name"] is not None:
            yield parse_reference(found["name"])
        elif found[0] == "${":
            yield Reference(name=text[found.start() : found.start() + 20], kind="open")


def has_reference(value: object) -> bool:
    """Whether a value will only be known when the step is planned."""
    return isinstance(value, str) and any(True for _ in references(value))


def texts(value: Any, at: At = ()) -> Iterator[tuple[At, str]]:
    """Every text of nested data with the way to it."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts(inner, (*at, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from texts(inner, (*at, index))


def put_in(
    value: Any, known: Callable[[Reference], Any], *, last: bool, words: bool = False
) -> Any:
    """Nested data with its references replaced; `known` returns KEEP for those that stay.

    A text that is one reference and nothing else takes the value's type, so `port: ${param.port}`
    is a number; in `argv`, `env` and a server's `command` and `extra`, which hold words, it is
    text. The last pass also turns `$${` into `${`.
    """
    if isinstance(value, Mapping):
        return {
            key: put_in(inner, known, last=last, words=words or _holds_words(key, inner))
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [put_in(inner, known, last=last, words=words) for inner in value]
    if not isinstance(value, str):
        return value
    whole = _TOKEN.fullmatch(value)
    if whole is not None and whole["name"] is not None:
        found = known(parse_reference(whole["name"]))
        if found is KEEP:
            return value
        return as_text(found) if words and isinstance(found, int | float) else found

    def one(match: re.Match[str]) -> str:
        if match["name"] is None:
            return "${" if last and match[0] == "$${" else match[0]
        found = known(parse_reference(match["name"]))
        return match[0] if found is KEEP else as_text(found)

    return _TOKEN.sub(one, value)


def _holds_words(key: object, value: object) -> bool:
    return key in WORDS or (key in WORD_LISTS and isinstance(value, list | tuple))


def spread(value: Any, named: Callable[[str], tuple[str, ...]]) -> Any:
    """Nested data in which a list's element that names a result of a family is one for each member.

    `named` gives the tasks that a name stands for.
    """
    if isinstance(value, Mapping):
        return {key: spread(inner, named) for key, inner in value.items()}
    if not isinstance(value, list | tuple):
        return value
    found = []
    for inner in value:
        whole = _TOKEN.fullmatch(inner) if isinstance(inner, str) else None
        reference = parse_reference(whole["name"]) if whole and whole["name"] else None
        if reference is not None and reference.kind == "task" and named(reference.task):
            found += [f"${{task.{task}.out.{reference.key}}}" for task in named(reference.task)]
        else:
            found.append(spread(inner, named))
    return found


KEEP = object()


def as_text(value: object) -> str:
    """A value inside a longer text: as YAML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def resolve(
    value: Any, *, root: str, work: str, workspace: str, outs: Mapping[str, Mapping[str, Any]]
) -> Any:
    """Everything that was left for the moment of planning.

    Raises:
        ReferenceUnresolved: a result that is not there (yet).
    """

    def known(reference: Reference) -> Any:
        if reference.kind == "host":
            return root if reference.key == "root" else work
        if reference.kind == "workspace":
            return workspace
        if reference.kind == "task":
            return _out(reference, outs)
        raise ReferenceUnresolved(
            f"${{{reference.name}}} has no value", hint="Run `runbook validate` on the file."
        )

    return put_in(value, known, last=True)


def _out(reference: Reference, outs: Mapping[str, Mapping[str, Any]]) -> Any:
    found: Any = outs.get(reference.task)
    if found is None:
        raise ReferenceUnresolved(
            f"${{{reference.name}}}: task {reference.task} has recorded no results yet",
            hint=f"Run {reference.task} first.",
        )
    if reference.key in found:
        return found[reference.key]
    inner = found
    for part in reference.key.split("."):
        if not isinstance(inner, Mapping) or part not in inner:
            raise ReferenceUnresolved(
                f"${{{reference.name}}}: task {reference.task} recorded no `{reference.key}`; "
                f"it recorded: {', '.join(sorted(map(str, found))) or 'nothing'}",
                hint="Correct the reference in the runbook file, or retry the task.",
            )
        inner = inner[part]
    return inner
