"""What is wrong with a runbook file: every problem with its line, all of a file at once."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.errors import RunbookError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One thing to mend. Lines and columns count from 1."""

    line: int
    column: int
    message: str
    suggestion: str = ""
    """What was probably meant; rendered as a question."""

    def __str__(self) -> str:
        ask = f" (did you mean {self.suggestion}?)" if self.suggestion else ""
        return f"{self.line}:{self.column}: {self.message}{ask}"


class PlanError(RunbookError):
    """A runbook file that cannot be used."""

    def __init__(self, path: str, problems: Iterable[Problem], *, hint: str = "") -> None:
        self.path = path
        self.problems = sorted(set(problems))
        super().__init__(
            "\n".join(f"{path}:{problem}" for problem in self.problems),
            hint=hint or f"Change it there; `runbook validate {path}` checks again.",
        )


def nearest(word: str, words: Iterable[str]) -> str:
    """The known word that `word` was probably meant to be, or nothing."""
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return found[0] if found else ""


def listed(words: Iterable[str]) -> str:
    """Known words for a message."""
    return ", ".join(words) or "none"
