"""Which stream of a task a log pane shows, and what its title says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from runbook.tui import format as fmt

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.tui.describe import Looks
    from runbook.tui.ports import ServicePort
    from runbook.tui.widgets.log_view import LogView


def stream_of(service: ServicePort, task: str, wanted: str | None) -> tuple[str, Path | None]:
    """The chosen stream; unchosen, the errors only when the output is empty."""
    if wanted is not None:
        return wanted, service.log_path(task, wanted)
    out = service.log_path(task, "out")
    if not _size(out):
        err = service.log_path(task, "err")
        if _size(err):
            return "err", err
    return "out", out


def title_of(view: LogView, stream: str, looks: Looks) -> Text:
    """`Log  out · 1,204 lines · following`."""
    title = Text.assemble("Log ", (stream, looks.inks.text))
    lines = view.file.line_count
    if lines:
        title.append(
            f" {looks.glyphs.dot} {lines:,} line{'' if lines == 1 else 's'}", looks.inks.muted
        )
        state = "following" if view.follow else "f follows"
        title.append(f" {looks.glyphs.dot} {state}", looks.inks.muted)
        if not view.file.complete:
            title.append(f" {looks.glyphs.dot} reading {fmt.size(view.file.size)}", looks.inks.warn)
    return title


def _size(path: Path | None) -> int:
    try:
        return path.stat().st_size if path is not None else 0
    except OSError:
        return 0
