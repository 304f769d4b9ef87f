"""A list of single lines with a cursor: hosts, events, samples, what waits for you."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.text import Text

from runbook.tui.widgets.cursor_list import CursorList

if TYPE_CHECKING:
    from rich.style import Style

    from runbook.tui.describe import Looks


@dataclass(frozen=True, slots=True)
class TextRow:
    """One line. The text is clean: it comes from `format`."""

    key: str | None
    parts: tuple[tuple[str, Style], ...]


class TextList(CursorList[TextRow]):
    """Lines as they are, clipped to the width."""

    def key_of(self, row: TextRow) -> str | None:
        """The key that the row carries."""
        return row.key

    def draw_row(self, row: TextRow, width: int, looks: Looks, *, here: bool) -> list[Segment]:
        """The mark of the cursor, then the line."""
        mark = looks.glyphs.arrow if here else " "
        line = Text.assemble((f"{mark} ", looks.inks.busy), *row.parts, no_wrap=True, end="")
        if line.cell_len > width:
            line.truncate(max(0, width - 1))
            line.append(looks.glyphs.ellipsis, looks.inks.faint)
        return [Segment(text, style) for text, style in _runs(line)]


def _runs(line: Text) -> list[tuple[str, Style]]:
    """A line's text in runs of one style; `assemble` keeps its parts in order, without overlap."""
    plain, at, out = line.plain, 0, []
    for span in line.spans:
        start, end = min(span.start, len(plain)), min(span.end, len(plain))
        if end > start >= at:
            out.append((plain[start:end], span.style))
            at = end
    return out  # type: ignore[return-value]
