"""The graph as a list by phase. Draws only visible rows; the cursor stays on its task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from runbook.tui import format as fmt
from runbook.tui.board_model import PhaseRow, Row, TaskRow

if TYPE_CHECKING:
    from textual import events

    from runbook.tui.describe import Looks


class TaskList(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows rows, moves a cursor over the tasks among them, tells where it stands."""

    DEFAULT_CSS = "TaskList { scrollbar-size-vertical: 1; overflow-x: hidden; }"

    @dataclass
    class Selected(Message):
        """The cursor came to a task."""

        task: str | None

    @dataclass
    class Moved(Message):
        """A person moved the cursor."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._rows: list[Row] = []
        self._looks: Looks | None = None
        self.current: str | None = None
        """Where the cursor is."""

    def show(self, rows: list[Row], looks: Looks) -> None:
        """New rows. The cursor keeps its task while that is shown, else goes to the nearest."""
        where = self._index()
        changed = len(rows) != len(self._rows)
        moved = rows != self._rows or looks is not self._looks
        self._rows, self._looks = rows, looks
        if changed:
            self.virtual_size = Size(0, len(rows))
        if self._index() is None:
            self._place(where or 0, 1)
        elif changed:
            self._reveal()
        if moved:
            self.refresh()

    def select(self, task: str | None) -> None:
        """Put the cursor on a task, if it is shown."""
        if task != self.current and any(
            isinstance(row, TaskRow) and row.task == task for row in self._rows
        ):
            self.current = task
            self._reveal()
            self.refresh()
            self.post_message(self.Selected(task))

    def move(self, step: int) -> None:
        """The next or previous task."""
        tasks = [row.task for row in self._rows if isinstance(row, TaskRow)]
        if not tasks:
            return
        at = tasks.index(self.current) if self.current in tasks else 0
        self.select(tasks[max(0, min(len(tasks) - 1, at + step))])
        self.post_message(self.Moved())

    def move_page(self, step: int) -> None:
        """A page of tasks."""
        self.move(step * max(1, self.size.height - 2))

    def move_top(self) -> None:
        """The first task."""
        self.move(-len(self._rows))
        self.scroll_to(y=0, animate=False)

    def move_bottom(self) -> None:
        """The last task."""
        self.move(len(self._rows))

    def on_click(self, event: events.Click) -> None:
        """A click puts the cursor there."""
        at = event.get_content_offset(self)
        index = self.scroll_offset.y + at.y if at is not None else -1
        row = self._rows[index] if 0 <= index < len(self._rows) else None
        if isinstance(row, TaskRow):
            self.select(row.task)
            self.post_message(self.Moved())

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self._reveal()

    def render_line(self, y: int) -> Strip:
        """One row."""
        width = self.size.width
        index = self.scroll_offset.y + y
        if self._looks is None or index >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row = self._rows[index]
        if isinstance(row, PhaseRow):
            segments = self._phase(row, width, self._looks)
            ground = Style()
        else:
            segments = self._task_segments(row, width, self._looks)
            ground = self._ground(row, self._looks)
        strip = Strip(segments).adjust_cell_length(width)
        return strip.apply_style(self.rich_style + ground)

    def _ground(self, row: TaskRow, looks: Looks) -> Style:
        if row.task != self.current:
            return Style()
        return looks.inks.cursor if self.has_focus else looks.inks.cursor_idle

    def _phase(self, row: PhaseRow, width: int, looks: Looks) -> list[Segment]:
        count = f"{row.finished}/{row.total}"
        done = row.finished == row.total
        title = fmt.clip(row.title, width - len(count) - 6, end=looks.glyphs.ellipsis)
        rule = looks.glyphs.rule * max(0, width - len(count) - len(title) - 4)
        return [
            Segment(f" {title} ", looks.inks.strong),
            Segment(f"{rule} ", looks.inks.faint),
            Segment(count, looks.inks.ok if done else looks.inks.muted),
        ]

    def _task_segments(self, row: TaskRow, width: int, looks: Looks) -> list[Segment]:
        inks = looks.inks
        ink = inks.state(row.state)
        here = row.task == self.current
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
                inks.warn if row.word == "no link" else ink,
            ),
            Segment(fmt.pad(row.aside, aside, right=True) if aside else "", inks.muted),
        ]

    def _index(self) -> int | None:
        return next(
            (
                index
                for index, row in enumerate(self._rows)
                if isinstance(row, TaskRow) and row.task == self.current
            ),
            None,
        )

    def _place(self, near: int, step: int) -> None:
        """Put the cursor on the task nearest to a row number."""
        tasks = [(i, row.task) for i, row in enumerate(self._rows) if isinstance(row, TaskRow)]
        found = min(tasks, key=lambda pair: abs(pair[0] - near), default=None)
        self.current = found[1] if found is not None else None
        self._reveal()
        self.post_message(self.Selected(self.current))

    def _reveal(self) -> None:
        index = self._index()
        if index is None:
            return
        # With its phase head in sight when it is the first of its phase.
        top = index - 1 if index and isinstance(self._rows[index - 1], PhaseRow) else index
        self.scroll_to_region(Region(0, top, 1, index - top + 1), animate=False, force=True)
