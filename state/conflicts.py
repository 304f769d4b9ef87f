"""`progress --fix`: a PROGRESS.md with git's conflict markers, made one file again.

Our region is never merged, only rendered anew. What people wrote on both sides is merged.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from state.merge import common, merge_notes
from state.regions import MarkersBroken, take_apart

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = re.compile(r"<{7}( |$)")
BASE = re.compile(r"\|{7}( |$)")
SPLIT = re.compile(r"={7}$")
THEIRS = re.compile(r">{7}( |$)")


def has_conflict(text: str) -> bool:
    """Whether git left its markers in the file."""
    lines = text.splitlines()
    return any(OURS.match(line) for line in lines) and any(THEIRS.match(line) for line in lines)


def resolve(text: str, body: str, *, revision: int) -> str:
    """The file with our region rendered anew and the notes of both sides.

    Raises `MarkersBroken` where a side cannot be taken apart.
    """
    sides = _sides(text)
    if sides is None:
        raise MarkersBroken("git's conflict markers are not in order")
    ours, base, theirs = sides
    one, two = take_apart(ours), take_apart(theirs)
    try:
        ancestor = take_apart(base)
        before, after = ancestor.before, ancestor.after
    except MarkersBroken:  # git was not asked for it: then what both still have is what there was
        before, after = common(one.before, two.before), common(one.after, two.after)
    result = replace(
        one.with_body(body, revision),
        before=merge_notes(before, one.before, two.before).text,
        after=merge_notes(after, one.after, two.after).text,
    ).text()
    take_apart(result)  # never leave a file that the next writing would refuse
    return result


def _sides(text: str) -> tuple[str, str, str] | None:
    """The file as one side had it, as both had it once, and as the other side had it."""
    sides: tuple[list[str], list[str], list[str]] = ([], [], [])
    at: int | None = None
    for line, next_at in _marked(text):
        if next_at is None:
            for index, side in enumerate(sides):
                if at is None or at == index:
                    side.append(line)
        elif not _legal(at, next_at):
            return None
        else:
            at = None if next_at < 0 else next_at
    return None if at is not None else ("".join(sides[0]), "".join(sides[1]), "".join(sides[2]))


def _legal(at: int | None, to: int) -> bool:
    return (at, to) in {(None, 0), (0, 1), (0, 2), (1, 2), (2, -1)}


def _marked(text: str) -> Iterator[tuple[str, int | None]]:
    """Each line with None, or the side that a conflict marker opens (-1: it closes)."""
    open_ = False
    for line in text.replace("\r\n", "\n").splitlines(keepends=True):
        bare = line.rstrip("\n")
        if OURS.match(bare):
            open_ = True
            yield line, 0
        elif open_ and BASE.match(bare):
            yield line, 1
        elif open_ and SPLIT.match(bare):
            yield line, 2
        elif open_ and THEIRS.match(bare):
            open_ = False
            yield line, -1
        else:
            yield line, None
