"""One glyph per state, one cell wide, no emoji; an ASCII set for terminals without the rest."""

from __future__ import annotations

import locale
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.signs import SIGNS

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN = {
    "draft": ".",
    "blocked": ".",
    "ready": "o",
    "gated": "@",
    "active": ">",
    "starting": ">",
    "verifying": ">",
    "draining": ">",
    "serving": "*",
    "done": "+",
    "failed": "x",
    "stopped": "/",
    "unhealthy": "!",
    "skipped": "-",
    "stale": "~",
    "attention": "?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters of the interface."""

    ascii_only: bool
    states: Mapping[str, str]
    ok: str
    bad: str
    unknown: str
    arrow: str
    folded: str
    unfolded: str
    rule: str
    dot: str
    ellipsis: str

    def state(self, name: str) -> str:
        """The glyph of a task state."""
        return self.states.get(name, "?")


FANCY = Glyphs(
    ascii_only=False,
    states=SIGNS,
    ok="✓",
    bad="✗",
    unknown="?",
    arrow="▸",
    folded="+",
    unfolded="-",
    rule="─",
    dot="·",
    ellipsis="…",
)
PLAIN = Glyphs(
    ascii_only=True,
    states=_PLAIN,
    ok="+",
    bad="x",
    unknown="?",
    arrow=">",
    folded="+",
    unfolded="-",
    rule="-",
    dot="-",
    ellipsis="~",
)


def choose(environment: Mapping[str, str]) -> Glyphs:
    """ASCII when asked for (`RUNBOOK_ASCII=1`) and where the terminal cannot show the rest."""
    if environment.get("RUNBOOK_ASCII", "") not in ("", "0"):
        return PLAIN
    if environment.get("TERM", "") in ("linux", "dumb", "vt100", "vt220"):
        return PLAIN
    named = next(
        (environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), ""
    )
    if named in ("C", "POSIX") or not named:
        # Python coerces a bare C locale to UTF-8; what it settled on is the better witness.
        named = locale.getpreferredencoding(False)
        return FANCY if "utf" in named.lower() else PLAIN
    return FANCY if "utf" in named.lower() or "." not in named else PLAIN
