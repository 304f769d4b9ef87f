"""A place with a list on the left and what is under the cursor on the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual import on
from textual.containers import Horizontal, Vertical

from runbook.tui.screens.place import PlaceScreen
from runbook.tui.widgets.text_list import TextList, TextRow
from runbook.tui.widgets.text_pane import TextPane

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from textual.app import ComposeResult
    from textual.widget import Widget

    from runbook.tui.describe import Looks


class SplitScreen(PlaceScreen):
    """Selecting shows."""

    AUTO_FOCUS = "#list"
    EMPTY = ""
    """What stands where there is nothing, and what to do then."""

    def __init__(self) -> None:
        super().__init__()
        self.list = TextList(id="list")
        self.pane = TextPane(id="detail", text_id="description")
        self._rows: Sequence[TextRow] = ()

    def body(self) -> ComposeResult:
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self.list
            with Vertical(id="right"):
                yield self.pane

    def panes(self) -> Iterable[Widget]:
        return (self.list, self.pane)

    def rows(self) -> list[TextRow]:
        """The list."""
        raise NotImplementedError

    def describe(self, key: str) -> tuple[str, RenderableType]:
        """Title and text of the row under the cursor."""
        raise NotImplementedError

    def draw_body(self) -> None:
        rows = self.rows()
        if rows != self._rows:
            self._rows = rows
        self.list.show(self._rows, self.home.looks)
        self.draw_detail()

    def draw_detail(self) -> None:
        """The right side."""
        key = self.list.current
        if key is None:
            self.pane.entitle(Text(""))
            said = f"Nothing matches {self.needle}." if self.needle else self.EMPTY
            self.pane.show(Text(said, style=self.home.looks.inks.muted))
            return
        title, text = self.describe(key)
        self.pane.entitle(Text(title))
        self.pane.show(text)

    @on(TextList.Selected)
    def follow_cursor(self) -> None:
        """Selecting shows."""
        self.moved_on()
        self.pane.move_top()
        self.draw_detail()
        self.draw_lines()

    @on(TextList.Opened)
    def open_clicked(self) -> None:
        """A second click is enter."""
        self.action_open()

    def go_to(self, name: str) -> None:
        self.list.select(name)
        self.list.focus()


def labelled(sections: Iterable[tuple[str, list[Text]]], looks: Looks, *, air: bool) -> Group:
    """Labels on the left, their lines on the right."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=False)
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, lines in sections:
        if air and grid.row_count:
            grid.add_row()
        for index, line in enumerate(lines):
            grid.add_row(Text(label if index == 0 else "", style=looks.inks.muted), line)
    return Group(grid)
