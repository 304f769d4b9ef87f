"""Scroll bars for terminals that have only ASCII: no eighths of a block at their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.scrollbar import ScrollBarRender

if TYPE_CHECKING:
    from textual.widget import Widget


class PlainRender(ScrollBarRender):
    """Whole cells only."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


def make_plain(widget: Widget) -> None:
    """Give a widget's scroll bar the plain look; the class, which all apps share, stays."""
    setattr(widget.vertical_scrollbar, "renderer", PlainRender)  # noqa: B010  a ClassVar to mypy
