"""Facts into text: the only door for strings that came from a host. Pure; makes `rich.text.Text`.

Textual parses bare strings as markup and a stray `[/]` in a log line ends the app, so no widget
gets a `str` from outside: it gets what `text()` returns.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.style import Style

# Unterminated strings (OSC, DCS) swallow a bounded run: a bomb must not hide the rest of a line.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]?"
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_UNSAFE = dict.fromkeys(
    (
        *range(32),
        *range(127, 160),
        1564,
        *range(8203, 8208),
        *range(8234, 8239),
        *range(8288, 8304),
        *range(55296, 57344),
        65279,
    )
)
_UNSAFE_ONE_LINE: dict[int, str | None] = {**_UNSAFE, 0x09: "  ", 0x0A: " ", 0x0D: " "}


MOST_SHOWN = 1500
"""Characters of one field: a screen shows no more, and a megabyte laid out would hold the keys."""


def clean(value: object, *, most: int = MOST_SHOWN, end: str = "…") -> str:
    """One line of at most `most` characters, without escapes, control codes or direction tricks."""
    raw = value if isinstance(value, str) else str(value)
    if len(raw) > most:
        raw = raw[:most] + end
    if raw.isascii() and raw.isprintable():
        return raw
    return _ESCAPES.sub("", raw).translate(_UNSAFE_ONE_LINE)


def text(value: object, style: Style | str = "", *, end: str = "…") -> Text:
    """Safe text for any widget; `end` marks where an endless one was cut."""
    return Text(clean(value, end=end), style=style)


def paragraphs(value: str, style: Style | str = "") -> Text:
    """Safe text of many lines."""
    return Text("\n".join(clean(line) for line in value.splitlines()), style=style)


def clip(value: str, width: int, *, end: str = "…") -> str:
    """At most `width` cells, with an ellipsis when something was cut. Text is clean already."""
    if width <= 0:
        return ""
    if cell_len(value) <= width:
        return value
    return set_cell_size(value, width - 1).rstrip() + end


def pad(value: str, width: int, *, right: bool = False, end: str = "…") -> str:
    """Exactly `width` cells."""
    value = clip(value, width, end=end)
    gap = " " * max(0, width - cell_len(value))
    return gap + value if right else value + gap


def duration(seconds: float | None) -> str:
    """`8s`, `3m 12s`, `2h 05m`, `4d 03h`."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def coarse(seconds: float) -> str:
    """A guess at the future needs no seconds: `40s`, `38m`, `2h 05m`."""
    return f"{round(seconds / 60)}m" if 100 <= seconds < 3570 else duration(seconds)


def parse_time(stamp: str | None) -> datetime | None:
    """A UTC ISO time; None for anything else."""
    if not stamp:
        return None
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def between(start: str | None, end: str | datetime | None) -> float | None:
    """Seconds from one time to another, or None when one is missing."""
    first = parse_time(start)
    last = end if isinstance(end, datetime) else parse_time(end)
    return None if first is None or last is None else max(0.0, (last - first).total_seconds())


def size(amount: float) -> str:
    """`512 B`, `12.4 MB`."""
    if amount < 1000:
        return f"{int(amount)} B"
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 1000:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} PB"


def number(value: Any) -> str:
    """A figure as people read it: `12,400`, `2.314`, `3.0e-04`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clean(value)
    if isinstance(value, int):
        return f"{value:,}"
    magnitude = abs(value)
    if magnitude != 0 and (magnitude < 1e-3 or magnitude >= 1e7):
        return f"{value:.1e}"
    if magnitude >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}".rstrip("0").rstrip(".") if magnitude else "0"


def value(found: Any) -> str:
    """Any JSON value on one line."""
    if isinstance(found, str):
        return clean(found) if found.strip() == found and found else f'"{clean(found)}"'
    if isinstance(found, (int, float)) and not isinstance(found, bool):
        # A port or an exit code is a name, not an amount: no separators in it.
        return number(found) if isinstance(found, float) or abs(found) > 99_999 else str(found)
    try:
        return clean(json.dumps(found, ensure_ascii=False, sort_keys=True))
    except (TypeError, ValueError):
        return clean(found)


def bar(fraction: float, width: int, *, ascii_only: bool = False) -> tuple[str, str]:
    """The filled and the empty part of a progress bar of `width` cells."""
    full = round(max(0.0, min(1.0, fraction)) * width)
    on, off = ("#", "-") if ascii_only else ("━", "─")
    return on * full, off * (width - full)


def chart(
    values: Sequence[float], width: int, height: int, *, ascii_only: bool = False
) -> list[str]:
    """A line chart of `width` by `height` cells in braille dots (or stars)."""
    across, down = (1, 1) if ascii_only else (2, 4)
    columns, rows = width * across, height * down
    points = _resample([v for v in values if v == v and abs(v) != float("inf")], columns)
    if not points:
        return [" " * width] * height
    low, high = min(points), max(points)
    scale = (rows - 1) / (high - low) if high > low else 0.0
    levels = [rows - 1 - round((v - low) * scale) if scale else rows // 2 for v in points]
    if ascii_only:
        return ["".join("*" if at == y else " " for at in levels).ljust(width) for y in range(rows)]
    return _braille(levels, width, height)


def _resample(values: Sequence[float], columns: int) -> list[float]:
    """The mean of each of `columns` buckets; fewer values are stretched."""
    if not values:
        return []
    count = len(values)
    out = []
    for i in range(columns):
        lo = i * count // columns
        hi = max(lo + 1, (i + 1) * count // columns)
        out.append(sum(values[lo:hi]) / (hi - lo))
    return out


def _braille(levels: Sequence[int], width: int, height: int) -> list[str]:
    dots = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
    cells = [[0] * width for _ in range(height)]
    previous = levels[0]
    for x, level in enumerate(levels):
        lo, hi = (level, level) if level == previous else sorted((level, previous))
        if lo != hi:  # join the dots, without repeating the one drawn a column before
            lo, hi = (lo + 1, hi) if previous < level else (lo, hi - 1)
        for y in range(lo, hi + 1):
            cells[y // 4][x // 2] |= dots[y % 4][x % 2]
        previous = level
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells]
