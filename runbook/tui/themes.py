"""Our two themes, and the inks that drawn text takes from whichever theme is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from runbook.tui.inks import Inks

if TYPE_CHECKING:
    from collections.abc import Mapping

DARK = Theme(
    name="runbook-dark",
    dark=True,
    primary="#7aa2f7",
    secondary="#9aa5ce",
    accent="#e6a3d8",
    success="#7fdcb4",
    warning="#ecc05c",
    error="#ee5f66",
    foreground="#d8dee9",
    background="#11151c",
    surface="#171c25",
    panel="#222a37",
    variables={"footer-key-foreground": "#7aa2f7", "input-selection-background": "#7aa2f7 35%"},
)
LIGHT = Theme(
    name="runbook-light",
    dark=False,
    primary="#2458c8",
    secondary="#56607c",
    accent="#b8489e",
    success="#007a63",
    warning="#a06000",
    error="#a3102a",
    foreground="#272b34",
    background="#fbfaf7",
    surface="#f2f0ea",
    panel="#dfdcd3",
    variables={"footer-key-foreground": "#2458c8", "input-selection-background": "#2b5fc4 35%"},
)

THEMES = (DARK, LIGHT)


def inks(variables: Mapping[str, str]) -> Inks:
    """The inks of a theme, from its resolved variables."""
    text = _color(variables, "foreground", "#d8dee9")
    ground = _color(variables, "background", "#11151c")
    primary = _color(variables, "primary", "#7aa2f7")
    return Inks(
        text=_ink(text),
        strong=_ink(text) + Style(bold=True),
        muted=_blend(text, ground, 0.38),
        faint=_blend(text, ground, 0.66),
        ok=_ink(_color(variables, "success", "#7fdcb4")),
        bad=_ink(_color(variables, "error", "#ee5f66")),
        warn=_ink(_color(variables, "warning", "#ecc05c")),
        busy=_ink(primary),
        accent=_ink(_color(variables, "accent", "#e6a3d8")),
        cursor=_ground(primary, ground, 0.76),
        cursor_idle=_ground(text, ground, 0.90),
    )


def _color(variables: Mapping[str, str], name: str, fallback: str) -> Color:
    try:
        return Color.parse(variables.get(name, fallback))
    except ColorParseError:
        return Color.parse(fallback)


def _ink(color: Color) -> Style:
    return Style(color=color.rich_color)


def _blend(color: Color, ground: Color, share: float) -> Style:
    if color.ansi is not None or ground.ansi is not None:  # the terminal's own palette: no mixing
        return Style(dim=True)
    return Style(color=color.blend(ground, share, 1.0).rich_color)


def _ground(color: Color, ground: Color, share: float) -> Style:
    if color.ansi is not None or ground.ansi is not None:
        return Style(reverse=True)
    return Style(bgcolor=color.blend(ground, share, 1.0).rich_color)
