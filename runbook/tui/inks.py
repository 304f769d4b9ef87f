"""Styles by meaning, without the themes that fill them: also for text that goes to no screen."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rich.style import Style

_STATE_INKS = {
    "ready": "text",
    "gated": "accent",
    "active": "busy",
    "starting": "busy",
    "verifying": "busy",
    "draining": "busy",
    "serving": "ok",
    "done": "ok",
    "failed": "bad",
    "stopped": "text",
    "unhealthy": "bad",
    "stale": "warn",
    "attention": "warn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inks:
    """Styles by meaning. A colour never carries a meaning alone: a glyph and a word go with it."""

    text: Style
    strong: Style
    muted: Style
    faint: Style
    ok: Style
    bad: Style
    warn: Style
    busy: Style
    accent: Style
    cursor: Style
    """Background of the row under the cursor when its pane has the focus."""
    cursor_idle: Style

    def state(self, name: str) -> Style:
        """The ink of a task state."""
        ink: Style = getattr(self, _STATE_INKS.get(name, "muted"))
        return ink


def colourless() -> Inks:
    """For a terminal without the UI, or a pipe."""
    return Inks(**{field.name: Style.null() for field in fields(Inks)})
