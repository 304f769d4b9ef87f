"""A pane with a text that scrolls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import VerticalScroll
from textual.widgets import Static

from runbook.tui.widgets.titled import Titled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.segment import Segment
    from textual.app import ComposeResult


class TextPane(VerticalScroll, Titled, can_focus=True, inherit_bindings=False):
    """Shows one renderable, made by `format` and `describe`: never a bare string."""

    def __init__(self, *, id: str, text_id: str) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self._text = Static(id=text_id, classes="pane-text")
        self._drawn: list[list[Segment]] = []

    def compose(self) -> ComposeResult:
        yield self._text

    def show(self, text: RenderableType) -> None:
        """Another text, at the same place; nothing is painted when it reads the same."""
        console = self.app.console
        lines = console.render_lines(text, console.options.update_width(self.room), pad=False)
        if lines != self._drawn:
            grown = len(lines) != len(self._drawn)
            self._drawn = lines
            self._text.update(text, layout=grown)

    @property
    def room(self) -> int:
        """Cells for a line."""
        return max(24, (self.size.width or 60) - 2)

    def move(self, step: int) -> None:
        """Lines up or down."""
        self.scroll_relative(y=step, animate=False)

    def move_page(self, step: int) -> None:
        """A page up or down."""
        self.move(step * max(1, self.size.height - 1))

    def move_top(self) -> None:
        """The beginning."""
        self.scroll_home(animate=False)

    def move_bottom(self) -> None:
        """The end."""
        self.scroll_end(animate=False)
