"""Text of strangers made harmless in Markdown: it stays one line, and stays text.

What a host or a person wrote must not be able to form a heading, a table cell, a marker of ours,
or HTML, wherever in PROGRESS.md it is put.
"""

from __future__ import annotations

import re
import unicodedata

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~&$])")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}(#{1,6})(?=\s|$)")
UNDERLINE = re.compile(r" {0,3}(=+|-+)\s*$")
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def one_line(text: str, limit: int = 400) -> str:
    """Whitespace runs become one space, control and direction characters go, length is bounded."""
    spaced = " ".join(text.split())
    shown = "".join(
        char for char in spaced if char == " " or unicodedata.category(char) not in HIDDEN
    )
    shown = shown.encode("utf-8", "replace").decode()
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # Cf holds the direction overrides


def prose(text: str, limit: int = 400) -> str:
    """Words of a person or of the runbook file, on one line, with nothing special in them."""
    return SPECIAL.sub(r"\\\1", one_line(text, limit))


def code(text: str, limit: int = 200) -> str:
    """Text of a host, as a code span: quoted, not said. Safe in a table cell too."""
    shown = one_line(text, limit).replace("|", "¦")
    if not shown.strip():
        return ""
    ticks = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (ticks + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def embedded(text: str) -> str:
    """A Markdown text placed below our own headings: it may not outrank, hide or end them."""
    lines: list[str] = []
    fence = ""
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = _visible(raw.rstrip())
        opening = FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence) and line.strip() == opening[1]:
                fence = ""
            lines.append(_no_comment(line))
        elif opening:
            fence = opening[1]
            lines.append(_no_comment(line))
        else:
            lines.append(_outside_fence(line, lines[-1] if lines else ""))
    if fence:
        lines.append(fence)  # an open fence would swallow the rest of the file
    return "\n".join(lines).strip("\n")


def _visible(line: str) -> str:
    kept = "".join(
        char for char in line if char == "\t" or unicodedata.category(char) not in HIDDEN
    )
    return kept.encode("utf-8", "replace").decode()


def _no_comment(line: str) -> str:
    return line.replace("<!--", "<!‐-")  # a hyphen that is not one: shown, never a marker


def _outside_fence(line: str, before: str) -> str:
    heading = HEADING.match(line)
    if heading:
        return "#" * max(3, len(heading[1])) + _untagged(line[heading.end() :])
    if UNDERLINE.match(line) and before.strip():
        return f"\\{line.strip()}"  # it would make a heading of the line before
    return _untagged(line)


def _untagged(line: str) -> str:
    """HTML becomes text, except in code spans, where it is text already."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return TAG.sub("&lt;", line)
    for index in range(0, len(parts), 2):
        parts[index] = TAG.sub("&lt;", parts[index])
    return _no_comment("`".join(parts))
