"""Three-way merging of people's notes: nothing that anybody wrote is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The text, and whether two people changed the same lines (then both versions are in it)."""

    text: str
    overlapped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Lines [start, end) of the base became `lines`."""

    start: int
    end: int
    lines: tuple[str, ...]


def merge_notes(
    base: str, ours: str, theirs: str, *, labels: tuple[str, str] = ("here", "there")
) -> Merged:
    """Both sides' changes against their common ancestor, by line.

    Unlike a merge of code, lines that one side deleted and the other edited are kept as edited,
    and two different edits of the same lines stand one after the other, labelled.
    """
    if ours == theirs:
        return Merged(text=ours, overlapped=False)
    lines = base.splitlines()
    left = _changes(lines, ours.splitlines())
    right = _changes(lines, theirs.splitlines())
    merged: list[str] = []
    overlapped = False
    at = 0
    while left or right:
        start = min(change.start for change in (*left[:1], *right[:1]))
        end = start
        mine: list[Change] = []
        yours: list[Change] = []
        while True:  # grow the region until no change of either side reaches into it
            if left and _touches(left[0], start, end, opened=bool(mine or yours)):
                mine.append(left.pop(0))
                end = max(end, mine[-1].end)
            elif right and _touches(right[0], start, end, opened=bool(mine or yours)):
                yours.append(right.pop(0))
                end = max(end, yours[-1].end)
            else:
                break
        merged += lines[at:start]
        one, two = _applied(lines, start, end, mine), _applied(lines, start, end, yours)
        both, clash = _both(one, two, changed=(bool(mine), bool(yours)), labels=labels)
        merged += both
        overlapped = overlapped or clash
        at = end
    merged += lines[at:]
    return Merged(text="".join(f"{line}\n" for line in merged), overlapped=overlapped)


def common(ours: str, theirs: str) -> str:
    """The lines that both have, in order: the best guess where no ancestor is known."""
    left, right = ours.splitlines(), theirs.splitlines()
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return "".join(f"{line}\n" for block in blocks for line in left[block.a : block.a + block.size])


def _changes(base: Sequence[str], side: Sequence[str]) -> list[Change]:
    matcher = SequenceMatcher(None, base, side, autojunk=False)
    return [
        Change(start=i, end=j, lines=tuple(side[k:m]))
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    ]


def _touches(change: Change, start: int, end: int, *, opened: bool) -> bool:
    if not opened:
        return change.start == start
    return change.start < end or change.start == start


def _applied(base: Sequence[str], start: int, end: int, changes: Sequence[Change]) -> list[str]:
    lines: list[str] = []
    at = start
    for change in changes:
        lines += [*base[at : change.start], *change.lines]
        at = change.end
    return [*lines, *base[at:end]]


def _both(
    one: list[str], two: list[str], *, changed: tuple[bool, bool], labels: tuple[str, str]
) -> tuple[list[str], bool]:
    if one == two or not changed[1]:
        return one, False
    if not changed[0]:
        return two, False
    if not one or not two:  # deleted here, edited there: the words win
        return one or two, True
    if one == two[: len(one)] or two == one[: len(two)]:
        return max(one, two, key=len), False
    return [f"[{labels[0]}]", *one, f"[{labels[1]}]", *two], True
