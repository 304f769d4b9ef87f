"""Everything the command line prints. The only module that writes to stdout and stderr."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.signs import SIGNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WIDTH = 80
"""Columns of a terminal, as far as tables keep to them."""
LEAST_ROOM = 12

COLOURS = {
    "done": "32",
    "serving": "32",
    "failed": "31",
    "attention": "31",
    "unhealthy": "31",
    "gated": "35",
    "stopped": "35",
    "stale": "33",
    "active": "36",
    "verifying": "36",
    "starting": "36",
    "draining": "36",
    "ready": "1",
}


def line(text: str = "") -> None:
    """One line on stdout, at once: a watcher may be reading a pipe."""
    print(text, flush=True)


def text(value: str) -> None:
    """Text that has its own line ends."""
    print(value, end="", flush=True)


def error(message: str, hint: str) -> None:
    """What went wrong and the next step, on stderr."""
    print(f"runbook: {message}", file=sys.stderr)
    if hint:
        print(f"  {located(hint)}", file=sys.stderr)


_CHOSEN: list[Path] = []
OURS = re.compile(r"(^|`|(?<=: ))runbook (?=[a-z])")
"""A command of ours at the start of a text, in a code span, or after a colon."""


def choose(workspace: Path) -> None:
    """The workspace that this process was pointed at, by `-w` or by what it made."""
    _CHOSEN[:] = [workspace]


def forget() -> None:
    """Nothing is chosen, as when a process begins."""
    _CHOSEN.clear()


def located(text: str) -> str:
    """A text whose commands of ours work from where the person stands: with `-w` when needed."""
    if not _CHOSEN or not OURS.search(text):
        return text
    meant, here = _root(_CHOSEN[0]), _root(Path(os.environ.get("RUNBOOK_WORKSPACE") or "."))
    if meant is None or meant == here:
        return text
    return at(_CHOSEN[0], text)


def at(workspace: Path, text: str) -> str:
    """A text whose commands of ours work from anywhere."""
    place = shlex.quote(str(workspace))
    return OURS.sub(lambda found: f"{found.group(1)}runbook -w {place} ", text)


def _root(place: Path) -> Path | None:
    from runbook.errors import NoWorkspace
    from runbook.workspace import find_workspace

    try:
        return find_workspace(place).root.resolve()
    except NoWorkspace:
        return None


_ANSWERS: list[str] = []


def json_line(value: Mapping[str, Any]) -> None:
    """One JSON answer."""
    _ANSWERS.append("given")
    print(json.dumps(value, ensure_ascii=False, indent=2), flush=True)


def answered() -> bool:
    """Whether this process has given a JSON answer: there is one at most."""
    return bool(_ANSWERS)


def colour_wanted() -> bool:
    """Colour only on a terminal that wants it (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def painted(text: str, state: str) -> str:
    """Text in the colour of a state. The state's glyph and word are always there too."""
    code = COLOURS.get(state)
    return f"\x1b[{code}m{text}\x1b[0m" if code and colour_wanted() else text


def state_word(state: str) -> str:
    """Glyph and word of a state."""
    return f"{SIGNS.get(state, ' ')} {state}"


def clean(text: str) -> str:
    """Text that may come from a host, on one line and without control codes."""
    return "".join(c if c.isprintable() else " " for c in text).strip()


def table(rows: Iterable[tuple[str, ...]], *, width: int | None = None) -> None:
    """Left-aligned columns; the last one is free, or goes on below itself beyond `width`."""
    rows = list(rows)
    if not rows:
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    before = sum(widths) + 2 * len(widths)
    for row in rows:
        cells = [cell.ljust(wide) for cell, wide in zip(row, widths, strict=False)]
        first, *more = _wrapped(row[-1], width - before) if width else [row[-1]]
        line("  ".join([*cells, first]).rstrip())
        for rest in more:
            line(" " * before + rest)


def sheet(rows: Sequence[tuple[str, ...]], *, width: int) -> None:
    """A table whose last column is text: where it is too wide, that goes below each row.

    Where the rest is still too wide, the first cell goes above it.
    """
    if not rows:
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        table(rows)
        return
    above = sum(widths[:-1]) + 2 * (len(widths) - 2) > width
    for row in rows:
        if above:
            line(row[0])
        columns = zip(row[above:-1], widths[above:-1], strict=True)
        line("  " * above + "  ".join(cell.ljust(wide) for cell, wide in columns).rstrip())
        for rest in _wrapped(row[-1], width - 4) if row[-1] else ():
            line(f"    {rest}")


def _wrapped(cell: str, width: int) -> list[str]:
    """The lines of a cell; one line where too little room is left."""
    import textwrap

    if width < LEAST_ROOM:
        return [cell]
    return textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) or [""]


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 100:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(value: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
