"""YAML 1.2, the strict part of it, into plain data that remembers where everything stood.

Built on ruamel.yaml's events: what makes YAML surprising (anchors, aliases, tags, merge keys,
several documents, keys that are not text) never becomes data, so nothing later has to care.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from runbook.plan.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

At = tuple[str | int, ...]
"""The way to a value: keys and indices from the top."""
Place = tuple[int, int]

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 40

_INT = re.compile(r"[-+]?[0-9]+")
_INT_BASES = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(slots=True)
class Document:
    """The data of a file and the places of its keys and values."""

    data: Any = None
    keys: dict[At, Place] = field(default_factory=dict)
    values: dict[At, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    text: str = ""
    asks: dict[str, str] = field(default_factory=dict)
    """Parameters with a problem -> how each would be given."""

    def place(self, at: At, *, key: bool = False) -> Place:
        """Where `at` stands; where it does not exist, what would contain it."""
        while True:
            found = (self.keys.get(at) if key else None) or self.values.get(at) or self.keys.get(at)
            if found is not None:
                return found
            if not at:
                return (1, 1)
            at, key = at[:-1], True

    def problem(self, at: At, message: str, *, suggestion: str = "", key: bool = False) -> None:
        """Record what is wrong at `at`."""
        line, column = self.place(at, key=key)
        self.problems.append(
            Problem(line=line, column=column, message=message, suggestion=suggestion)
        )


def read_yaml(text: str) -> Document:
    """Read one document; what is wrong stands in its `problems`, and the rest is still read."""
    document = Document(text=text)
    if len(text) > MAX_CHARACTERS:
        document.problem((), f"the file is larger than {MAX_CHARACTERS} characters")
        return document
    yaml = YAML(typ="safe", pure=True)
    try:
        _Builder(iter(yaml.parse(text)), document).build()
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        said = ": ".join(part for part in (error.context, error.problem) if part)
        if "'\\t'" in said:
            said += "; use spaces, not a tab"
        document.problems.append(
            Problem(line=place[0], column=place[1], message=f"not YAML: {said}")
        )
    except YAMLError as error:
        first = str(error).strip().splitlines()[0]
        document.problem((), f"not YAML: {first}")
    return document


class _TooDeep(YAMLError):
    """Deeper than any runbook; ends the reading."""


class _Builder:
    """Turns events into data, one method per kind of node."""

    def __init__(self, events: Iterator[Any], document: Document) -> None:
        self._events = events
        self._document = document

    def build(self) -> None:
        documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if event.version or event.tags:
                    self._say(event, "a %YAML or %TAG directive; leave it out: this is YAML 1.2")
            elif isinstance(event, ScalarEvent | MappingStartEvent | SequenceStartEvent):
                if documents > 1:
                    self._say(event, "a second document (`---`); a runbook is one document")
                    return
                self._document.data = self._node(event, ())

    def _say(self, event: Any, message: str) -> None:
        mark = event.start_mark
        self._document.problems.append(
            Problem(line=mark.line + 1, column=mark.column + 1, message=message)
        )

    def _node(self, event: Any, at: At) -> Any:
        self._document.values[at] = (event.start_mark.line + 1, event.start_mark.column + 1)
        if len(at) > MAX_DEPTH:
            raise _TooDeep(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, AliasEvent):
            self._say(event, f"an alias (*{event.anchor}); write the value out")
            return None
        if event.anchor:
            self._say(event, f"an anchor (&{event.anchor}); write the value where it is needed")
        if event.tag:
            self._say(
                event, f"a tag ({event.tag}); values are plain text, numbers, lists, mappings"
            )
        if isinstance(event, MappingStartEvent):
            return self._mapping(at)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(at)
        return self._scalar(event)

    def _sequence(self, at: At) -> list[Any]:
        values: list[Any] = []
        for event in self._events:
            if isinstance(event, SequenceEndEvent):
                break
            values.append(self._node(event, (*at, len(values))))
        return values

    def _mapping(self, at: At) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, MappingEndEvent):
                break
            key = self._key(event, at)
            value_at = (*at, key)
            first = self._document.keys.get(value_at)
            if first is not None:
                self._say(event, f"key `{key}` stands twice; the first is on line {first[0]}")
                # Its own keys are no second ones of those below the first.
                self._node(next(self._events), (*at, f"{key} again {_place(event)}"))
                continue
            self._document.keys[value_at] = _place(event)
            values[key] = self._node(next(self._events), value_at)
        return values

    def _key(self, event: Any, at: At) -> str:
        if not isinstance(event, ScalarEvent):
            self._node(event, (*at, "?"))
            self._say(event, "a key that is not text")
            return f"?{event.start_mark.line}"
        if event.anchor or event.tag:
            self._say(event, "an anchor or tag on a key")
        text = str(event.value)
        if event.implicit[0]:
            if text == "<<":
                self._say(event, "a merge key (<<); write the keys out")
            elif not isinstance(_plain(text), str):
                self._say(event, f'key `{text}` is not text; write "{text}"')
        return text

    def _scalar(self, event: Any) -> Any:
        text = str(event.value)
        try:
            text.encode()
        except UnicodeEncodeError:
            self._say(event, "half of a surrogate pair, which is no character")
            return ""
        if not event.implicit[0]:
            return text
        if _NOT_FINITE.fullmatch(text):
            self._say(event, f"{text} is not a finite number")
            return text
        if _INT.fullmatch(text) and len(digits := text.lstrip("+-")) > 1 and digits[0] == "0":
            self._say(event, f'{text} begins with a zero; write "{text}" for text, 0o for octal')
            return text
        return _plain(text)


def _place(event: Any) -> Place:
    return (event.start_mark.line + 1, event.start_mark.column + 1)


def _plain(text: str) -> Any:
    """The YAML 1.2 core schema: `yes` and `on` are words, `1_000` is text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) < 40 else text
    if _INT_BASES.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text
