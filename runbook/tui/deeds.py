"""What was done from this screen: each as its command, what came of it, and what takes it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from runbook.tui.ports import ServicePort


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """The verb that takes a deed back."""

    command: str
    call: Callable[[ServicePort], object]


@dataclass(slots=True, kw_only=True)
class Deed:
    """One thing that a key asked for."""

    at: datetime
    command: str
    undo: Undo | None = None
    outcome: str = ""
    """Empty while it is under way; `done`, or what went wrong."""

    @property
    def well(self) -> bool:
        """Whether it was carried out."""
        return self.outcome == DONE


DONE = "done"
MOST = 500


class Deeds:
    """Newest last."""

    def __init__(self) -> None:
        self.all: list[Deed] = []

    def begin(self, command: str, at: datetime, *, undo: Undo | None = None) -> Deed:
        """Something was sent off."""
        deed = Deed(at=at, command=command, undo=undo)
        self.all = [*self.all[1 - MOST :], deed]
        return deed

    @property
    def under_way(self) -> Deed | None:
        """The newest that has not ended yet."""
        return next((deed for deed in reversed(self.all) if not deed.outcome), None)

    def take_back(self) -> Undo | None:
        """The verb that takes the last deed back that can be; each only once."""
        for deed in reversed(self.all):
            if deed.well and deed.undo is not None:
                undo, deed.undo = deed.undo, None
                return undo
        return None
