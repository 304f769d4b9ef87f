"""A pane whose title is drawn again only when it says something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widget import Widget

if TYPE_CHECKING:
    from rich.text import Text


class Titled(Widget):
    """Setting a border's title repaints the whole pane; ten times a second that is felt."""

    _entitled: Text | None = None

    def entitle(self, title: Text) -> None:
        """Show this in the border."""
        if title != self._entitled or title.spans != self._entitled.spans:
            self._entitled = title
            self.border_title = title
