"""What the engine tells whoever listens. Facts in the past tense, no UI types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMoved:
    """A task changed state."""

    task: str
    state: str
    reason: str
    seconds: float | None = None
    """Wall time of the attempt that just ended; None while nothing ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """A running attempt wrote a newer progress line."""

    task: str
    progress: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrew:
    """The local copy of an attempt's stream grew."""

    task: str
    attempt: str
    stream: str
    path: Path
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """Something worth a line: an adoption, a fallback, a host seen again."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that needs a person, with the next step."""

    text: str
    hint: str = ""
    task: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalEnding(Problem):
    """A machine will be taken away soon, or was, while something runs on it."""

    role: str


EngineEvent = TaskMoved | Progressed | LogGrew | Info | Problem
Listener = Callable[[EngineEvent], None]
