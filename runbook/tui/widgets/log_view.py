"""The output of an attempt, straight from its file: only visible lines are read and drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from runbook.tui import format as fmt
from runbook.tui.logfile import LONGEST_LINE, LogFile
from runbook.tui.widgets.titled import Titled

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.tui.describe import Looks
    from runbook.tui.logsearch import Matches


class LogView(ScrollView, Titled, can_focus=True, inherit_bindings=False):
    """Follows the end of a file until somebody scrolls up."""

    DEFAULT_CSS = "LogView { scrollbar-size-vertical: 1; overflow-x: hidden; }"

    @dataclass
    class FollowChanged(Message):
        """Following began or ended."""

        follow: bool

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.file = LogFile(None)
        self.follow = True
        self.shift = 0
        """First column shown; long lines are moved, not wrapped."""
        self.matches: Matches | None = None
        """What is searched for: its lines are marked."""
        self.only: Matches | None = None
        """When set, no other lines are shown."""
        self.found: int | None = None
        """The line that the last search went to."""
        self._looks: Looks | None = None
        self._drawn: dict[int, str] = {}
        self.placeholder = ""

    @property
    def row_count(self) -> int:
        """Rows that can be scrolled through."""
        return len(self.only.lines) if self.only is not None else self.file.line_count

    def show(self, path: Path | None, looks: Looks, *, placeholder: str = "No output yet") -> None:
        """Show another file, from its end."""
        said = (looks, placeholder)
        moved, self._looks, self.placeholder = said != (self._looks, self.placeholder), *said
        if path == self.file.path:
            if moved:
                self.refresh()
            return
        self.file.close()
        self.file = LogFile(path)
        self._drawn.clear()
        self.shift, self.matches, self.only, self.found = 0, None, None, None
        self.virtual_size = Size(0, 0)
        self.set_follow(True)
        self.poll()
        self.refresh()

    def poll(self) -> bool:
        """Look whether the file grew; cheap enough for every tick."""
        generation, lines = self.file.generation, self.file.line_count
        moved = self.file.poll() or generation != self.file.generation
        if generation != self.file.generation:
            self._drawn.clear()
            self.found = None
        for matches in {id(m): m for m in (self.matches, self.only) if m is not None}.values():
            moved = matches.poll() or moved
        if not moved:
            return False
        self._drawn.pop(lines - 1, None)  # an unfinished last line has grown
        self.fit()
        return True

    def fit(self) -> None:
        """The rows are other ones: stay at the end when following."""
        self.virtual_size = Size(0, self.row_count)
        if self.follow:
            self.scroll_end(animate=False, force=True, immediate=True)
        self.refresh()

    def set_follow(self, follow: bool) -> None:
        """Follow the end, or stay."""
        if follow:
            self.scroll_end(animate=False, force=True, immediate=True)
        if follow != self.follow:
            self.follow = follow
            self.post_message(self.FollowChanged(follow))

    def top_line(self) -> int:
        """The number of the line at the upper edge."""
        row = int(self.scroll_offset.y)
        return self._line_of(row) if row < self.row_count else max(0, self.file.line_count - 1)

    def go_to_line(self, line: int) -> None:
        """Show a line in the middle, marked."""
        self.found = line
        self.set_follow(False)
        row = line if self.only is None else self.only.rank(line) - 1
        top = max(0, row - self.size.height // 3)
        self.scroll_to(y=top, animate=False, force=True, immediate=True)
        self.refresh()

    def visible_lines(self) -> list[str]:
        """What is shown, whole lines."""
        first = int(self.scroll_offset.y)
        rows = range(first, min(self.row_count, first + self.size.height))
        return [self._line(self._line_of(row)) for row in rows]

    def move(self, step: int) -> None:
        """Lines up or down."""
        self.scroll_relative(y=step, animate=False, force=True, immediate=True)

    def move_page(self, step: int) -> None:
        """A page up or down."""
        self.move(step * max(1, self.size.height - 1))

    def move_top(self) -> None:
        """The first line."""
        self.scroll_to(y=0, animate=False, force=True, immediate=True)

    def move_bottom(self) -> None:
        """The last line, and follow."""
        self.set_follow(True)

    def pan(self, step: int) -> None:
        """Show columns further right or left."""
        self.shift = max(0, self.shift + step * 20)
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling up ends following; only growth and a resize may move the end away."""
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value and new_value < self.max_scroll_y:
            self.set_follow(False)

    def on_unmount(self) -> None:
        """Let go of the file."""
        self.file.close()

    def on_resize(self) -> None:
        """Stay at the end when following."""
        if self.follow:
            self.scroll_end(animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        """One line of the file."""
        width = self.scrollable_content_region.width  # beside the scroll bar
        if self._looks is None:
            return Strip.blank(width, self.rich_style)
        row = self.scroll_offset.y + y
        if not self.row_count:
            line = self.placeholder if y == 0 else ""
            segments = [Segment(fmt.clip(f" {line}", width), self._looks.inks.faint)]
        elif row >= self.row_count:
            segments = []
        else:
            segments = self._draw(self._line_of(row), width, self._looks)
        return Strip(segments).adjust_cell_length(width).apply_style(self.rich_style)

    def _draw(self, number: int, width: int, looks: Looks) -> list[Segment]:
        marked = self.matches is not None and self.matches.has(number)
        here = number == self.found
        mark = looks.glyphs.arrow if here else "*" if marked else " "
        shown = fmt.clip(self._line(number)[self.shift :], width - 1, end=looks.glyphs.ellipsis)
        ink = looks.inks.text + looks.inks.cursor if here else looks.inks.text
        return [Segment(mark, looks.inks.busy), Segment(shown, ink)]

    def _line_of(self, row: int) -> int:
        return self.only.lines[row] if self.only is not None else row

    def _line(self, number: int) -> str:
        if number >= self.file.line_count:
            return ""  # not kept: the file may grow into this row
        known = self._drawn.get(number)
        if known is None:
            if len(self._drawn) > 4096:
                self._drawn.clear()
            known = self._drawn[number] = fmt.clean(
                self.file.line(number).expandtabs(4), most=LONGEST_LINE
            )
        return known
