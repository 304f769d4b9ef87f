"""What a runbook file says of its parameters: in the comments above and beside each.

A line above that begins with dashes is a heading and says nothing of the one below it.
`-p NAME=...` in a comment shows what a value looks like.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runbook.plan.yaml_reader import read_yaml

if TYPE_CHECKING:
    from runbook.plan.yaml_reader import Document

_BESIDE = re.compile(
    r"""\s*(?:"(?:\\.|[^"\\])*"|'[^']*')?[^\s#]*(?:\s+[^\s#]\S*)*\s+\#\s*(?P<said>.*)"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One of them."""

    name: str
    default: Any
    about: str
    """What it is, in the words of the file."""
    example: str
    """A value as it could be given."""

    def word(self) -> str:
        """As it is given on the command line."""
        return f"-p {self.name}={self.example or 'VALUE'}"

    def told(self) -> str:
        """What follows on what is wrong with it."""
        return f" ({self.about})" if self.about else ""


def parameters(text: str) -> list[Parameter]:
    """All of a file's, in its order."""
    document = read_yaml(text)
    declared = document.data.get("params") if isinstance(document.data, dict) else None
    return [parameter(document, name) for name in declared or ()]


def parameter(document: Document, name: str) -> Parameter:
    """One of a file that was read."""
    lines = document.text.split("\n")
    line, column = document.place(("params", name), key=True)
    above: list[str] = []
    for before in reversed(lines[: line - 1]):
        said = before.strip()
        if not said.startswith("#") or said.startswith("# ---"):
            break
        above.insert(0, said.lstrip("# "))
    found = _BESIDE.match(lines[line - 1][column - 1 :].partition(":")[2])
    beside = found["said"].strip() if found else ""
    about = " ".join(part for part in (*above, beside) if part)
    example = ""
    if shown := re.search(rf"(?:required: )?-p {re.escape(name)}=(\S+)", about):
        about, example = about.replace(shown[0], "").strip(), shown[1]
    return Parameter(
        name=name,
        default=document.data["params"][name],
        about=about,
        example=example,
    )
