"""The graph as a list by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment

from runbook.families import Family
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui.board_model import PhaseRow, Row, TaskRow
from runbook.tui.widgets.cursor_list import CursorList

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from runbook.tui.describe import Looks
    from runbook.views import View


class TaskList(CursorList[Row]):
    """Phases and tasks. What a task's row says is worked out when it is drawn."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._view: View | None = None
        self._now: datetime | None = None

    def show_view(self, rows: Sequence[Row], looks: Looks, view: View, now: datetime) -> None:
        """New rows, with the view that says how each stands."""
        self._view, self._now = view, now
        self.show(rows, looks)

    def key_of(self, row: Row) -> str | None:
        """Tasks and families have a name, phases do not."""
        return model.key_of(row)

    def draw_row(self, row: Row, width: int, looks: Looks, *, here: bool) -> list[Segment]:
        """A phase, a family or a task."""
        if isinstance(row, PhaseRow):
            return self._phase(row, width, looks)
        if isinstance(row, Family):
            return _family(row, width, looks, here=here)
        assert self._view is not None
        assert self._now is not None
        return _task(model.task_row(self._view, row, self._now), width, looks, here=here)

    def _phase(self, row: PhaseRow, width: int, looks: Looks) -> list[Segment]:
        count = f"{row.finished}/{row.total}"
        done = row.finished == row.total
        title = fmt.clip(row.title, width - len(count) - 6, end=looks.glyphs.ellipsis)
        rule = looks.glyphs.rule * max(0, width - len(count) - cell_len(title) - 4)
        return [
            Segment(f" {title} ", looks.inks.strong),
            Segment(f"{rule} ", looks.inks.faint),
            Segment(count, looks.inks.ok if done else looks.inks.muted),
        ]


def _family(row: Family, width: int, looks: Looks, *, here: bool) -> list[Segment]:
    """One line for all: the state that most needs to be seen, and how many are done."""
    inks, counts = looks.inks, row.counts
    done = sum(counts.get(state, 0) for state in model.FINISHED)
    tail = f" {done}/{len(row.tasks)}"
    others = [f"{n} {state}" for state, n in counts.items() if state not in model.FINISHED]
    said = f"  {', '.join(others[:2])}" if others else ""
    name = f"{fmt.clean(row.name)}[{len(row.tasks)}]"
    room = width - 6 - len(tail)
    title = fmt.clip(name, room, end=looks.glyphs.ellipsis)
    rest = fmt.pad(said, max(0, room - cell_len(title)), end=looks.glyphs.ellipsis)
    ink = inks.state(row.state)
    return [
        Segment(looks.glyphs.arrow if here else " ", inks.busy),
        Segment(f" {looks.glyphs.state(row.state)} ", ink),
        Segment(title, inks.strong if here else inks.text),
        Segment(rest, ink),
        Segment(f"{tail} {looks.glyphs.folded}", inks.ok if not others else inks.muted),
    ]


def _task(row: TaskRow, width: int, looks: Looks, *, here: bool) -> list[Segment]:
    inks = looks.inks
    ink = inks.state(row.state)
    aside = 7 if width >= 36 else 0
    word = 9 if width >= 26 else 0
    # In a narrow list a percentage says more than the word; the glyph still tells the state.
    shown = row.aside if not aside and row.aside.endswith("%") else row.word
    calm = row.state in ("blocked", "draft", "skipped", "done")
    if calm and not aside and cell_len(row.title) > width - word - 6:
        word = -1  # the glyph says it well enough, a cut name says nothing
    room = width - max(word, 0) - aside - 6 + (1 if word < 0 else 0)
    name = fmt.pad(row.title, room, end=looks.glyphs.ellipsis)
    title = inks.strong if here else inks.muted if calm and row.state != "done" else inks.text
    mark = looks.glyphs.arrow if here else " "
    return [
        Segment(mark, inks.busy),
        Segment(f" {looks.glyphs.state(row.state)} ", ink),
        Segment(name, title),
        Segment(
            " " + fmt.pad(shown, word) if word > 0 else "",
            ink if row.word == row.state else inks.warn,
        ),
        Segment(fmt.pad(row.aside, aside, right=True) if aside else "", inks.muted),
    ]
