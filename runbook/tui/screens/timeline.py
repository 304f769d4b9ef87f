"""Every event, newest first; narrowed by words, or by actor:, host:, task: and kind:."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from runbook.history import matching
from runbook.tui import format as fmt
from runbook.tui.screens.split import SplitScreen
from runbook.tui.timeline_model import row_of, tell
from runbook.tui.widgets.text_list import TextRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from state.model import Event, Task

PAGE = 2000
"""Events read at a time: a run of days has tens of thousands."""


class TimelineScreen(SplitScreen):
    """Read off the screen's thread; [ reads older ones."""

    PLACE = "timeline"
    FILTER = "filter: words, or actor:NAME host:ROLE task:ID kind:KIND"
    EMPTY = "Nothing has happened yet."

    def __init__(self) -> None:
        super().__init__()
        self._events: Sequence[Event] = ()
        self._revision = -1
        self._room = PAGE
        self._cache: tuple[object, str, list[TextRow]] = (None, "", [])

    @property
    def current_task(self) -> Task | None:
        event = self._event()
        return self.home.view.snapshot.by_id.get(event.task or "") if event is not None else None

    def _event(self) -> Event | None:
        key = self.list.current
        return next((event for event in self._events if str(event.seq) == key), None)

    def own_keys(self) -> list[str]:
        return ["attempt_before", "open", "back"]

    def suggested(self) -> str:
        return "runbook events" + (f" --match {self.needle!r}" if self.needle else "")

    def opened(self) -> None:
        self._read()

    def _read(self) -> None:
        revision = self.home.view.snapshot.revision
        if revision == self._revision:
            return
        self._revision = revision
        after = max(0, revision - self._room)
        self.home.bridge.look(
            "events",
            lambda service: service.events(after=after, limit=self._room + PAGE),
            self._take,
        )

    def _take(self, events: Sequence[Event]) -> None:
        self._events = list(reversed(events))
        self.draw()

    def rows(self) -> list[TextRow]:
        self._read()
        known = self._cache
        if known[0] is not self._events or known[1] != self.needle:
            view, looks = self.home.view, self.home.looks
            rows = [
                TextRow(str(event.seq), row_of(event, looks))
                for event in matching(self._events, self.needle, view.snapshot)
            ]
            self._cache = known = (self._events, self.needle, rows)
        return known[2]

    def draw_body(self) -> None:
        oldest = self._events[-1].seq if self._events else 0
        more = f", [ reads before {oldest}" if oldest > 1 else ""
        self.list.entitle(Text(f"Events{more}"))
        super().draw_body()

    def describe(self, key: str) -> tuple[str, RenderableType]:
        event = self._event()
        if event is None:
            return "", Text()
        return f"Event {event.seq}", tell(event, self.home.looks, now=self.home.now())

    def action_step(self, step: int) -> None:
        if step < 0:
            self._room += PAGE
            self._revision = -1
            self._read()
        else:
            self.list.move_top()

    def action_open(self) -> None:
        if self.current_task is not None:
            self.home.ways.go("task")
        else:
            self.home.voice.tell(f"{fmt.clean(self.list.current or '')} is about no task.")


SCREEN = TimelineScreen
