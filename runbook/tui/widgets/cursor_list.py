"""A list with a cursor that stays on its row, not on its number. Draws only what is visible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from runbook.tui.widgets.titled import Titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.segment import Segment
    from textual import events

    from runbook.tui.describe import Looks

Row = TypeVar("Row")
DRAWN = 1000
"""Lines remembered; more than any terminal has."""


class CursorList(ScrollView, Titled, Generic[Row], can_focus=True, inherit_bindings=False):
    """Shows rows, moves a cursor over those that have a key, tells where it stands."""

    DEFAULT_CSS = "CursorList { scrollbar-size-vertical: 1; overflow-x: hidden; }"

    @dataclass
    class Selected(Message):
        """The cursor came to a row."""

        key: str | None

    @dataclass
    class Opened(Message):
        """A person clicked the row under the cursor, or clicked twice."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._rows: Sequence[Row] = ()
        self._at: dict[str, int] = {}
        self._looks: Looks | None = None
        self._drawn: dict[int, list[Segment]] = {}
        """What each line in sight says, by its row: only what says something else is painted."""
        self.current: str | None = None
        """The key under the cursor."""
        self.by_hand = False
        """Whether a person moved the cursor. At once and by no message: what is drawn in between
        must not take it back."""

    @property
    def room(self) -> int:
        """Columns beside the scroll bar."""
        return self.scrollable_content_region.width

    def key_of(self, row: Row) -> str | None:
        """What names a row; None for one that the cursor passes over."""
        raise NotImplementedError

    def draw_row(self, row: Row, width: int, looks: Looks, *, here: bool) -> list[Segment]:
        """One row as segments."""
        raise NotImplementedError

    def show(self, rows: Sequence[Row], looks: Looks) -> None:
        """New rows. The cursor keeps its row while that is shown, else goes to the nearest."""
        self._looks = looks
        if rows is not self._rows:
            where = self._at.get(self.current or "")
            changed = len(rows) != len(self._rows)
            self._rows = rows
            self._at = {
                key: index
                for index, row in enumerate(rows)
                if (key := self.key_of(row)) is not None
            }
            if changed:
                self.virtual_size = Size(0, len(rows))
            if self.current not in self._at:
                self._place(where or 0)
            elif changed:
                self._reveal()
        self._repaint()

    def _repaint(self) -> None:
        """Paint the lines in sight that say something else than before."""
        top = int(self.scroll_offset.y)
        for y in range(self.size.height):
            row = top + y
            if self._drawn.get(row) != self._draw(row):
                self.refresh_line(y + top)

    def _draw(self, index: int) -> list[Segment]:
        """What a row says now; nothing below the last."""
        if self._looks is None or index >= len(self._rows):
            return []
        row = self._rows[index]
        here = self.current is not None and self.key_of(row) == self.current
        return self.draw_row(row, self.room, self._looks, here=here)

    def select(self, key: str | None) -> None:
        """Put the cursor on a row, if it is shown."""
        if key is not None and key != self.current and key in self._at:
            before, self.current = self._at.get(self.current or ""), key
            self._reveal()
            for row in (before, self._at[key]):
                if row is not None:
                    self.refresh_line(row)
            self.post_message(self.Selected(key))

    def move(self, step: int) -> None:
        """The next or previous row with a key."""
        if not self._at:
            return
        at = self._at.get(self.current or "", 0)
        last = len(self._rows) - 1
        way = 1 if step > 0 else -1
        target = max(0, min(last, at + step))
        while self.key_of(self._rows[target]) is None and 0 <= target + way <= last:
            target += way
        while self.key_of(self._rows[target]) is None and 0 <= target - way <= last:
            target -= way
        self.select(self.key_of(self._rows[target]))
        self.by_hand = True

    def move_page(self, step: int) -> None:
        """A page of rows."""
        self.move(step * max(1, self.size.height - 2))

    def move_top(self) -> None:
        """The first row."""
        self.move(-len(self._rows))
        self.scroll_to(y=0, animate=False)

    def move_bottom(self) -> None:
        """The last row."""
        self.move(len(self._rows))

    def on_click(self, event: events.Click) -> None:
        """A click puts the cursor there; on the cursor, or twice, it opens."""
        at = event.get_content_offset(self)
        index = self.scroll_offset.y + at.y if at is not None else -1
        key = self.key_of(self._rows[index]) if 0 <= index < len(self._rows) else None
        if key is None:
            return
        if key == self.current and event.chain > 1:
            self.post_message(self.Opened())
        self.select(key)
        self.by_hand = True

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self._reveal()

    def render_line(self, y: int) -> Strip:
        """One row."""
        index = int(self.scroll_offset.y) + y
        if len(self._drawn) > DRAWN:
            self._drawn.clear()
        segments = self._drawn[index] = self._draw(index)
        ground = Style()
        if self._looks is not None and index == self._at.get(self.current or ""):
            inks = self._looks.inks
            ground = inks.cursor if self.has_focus else inks.cursor_idle
        return Strip(segments).adjust_cell_length(self.room).apply_style(self.rich_style + ground)

    def _place(self, near: int) -> None:
        """Put the cursor on the row nearest to a row number."""
        found = min(self._at.items(), key=lambda pair: abs(pair[1] - near), default=None)
        self.current = found[0] if found is not None else None
        self._reveal()
        self.post_message(self.Selected(self.current))

    def _reveal(self) -> None:
        index = self._at.get(self.current or "")
        if index is None:
            return
        # With its head in sight when it is the first below one.
        top = index - 1 if index and self.key_of(self._rows[index - 1]) is None else index
        self.scroll_to_region(Region(0, top, 1, index - top + 1), animate=False, force=True)
