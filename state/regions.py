"""PROGRESS.md taken apart: our managed region between two markers, and everything that is not ours.

Markers count only as whole lines at column 0 outside code fences, and only as exactly one pair:
a marker quoted in prose is prose, and a doubtful file is never written to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from state.markdown import FENCE

BEGIN = re.compile(r"<!-- runbook:begin revision=(\d+) sha256=([0-9a-f]{64}) -->")
END = "<!-- runbook:end -->"
NOTES_BEGIN = "<!-- notes:begin -->"
NOTES_END = "<!-- notes:end -->"
NOTES_TEMPLATE = "\n## Notes\n\nWrite here; this part is kept as it is.\n\n"
LOOKS_LIKE_BEGIN = "<!-- runbook:begin"


class MarkersBroken(ValueError):
    """The file cannot be told apart into ours and theirs; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """The file as `before` + begin marker + `body` + end marker + `after`."""

    before: str
    revision: int
    digest: str
    body: str
    after: str

    @property
    def edited(self) -> bool:
        """Whether somebody wrote into our region."""
        return digest_of(self.body) != self.digest

    @property
    def notes(self) -> str:
        """What people wrote between the notes markers; empty where they removed those."""
        return self.after.partition(f"{NOTES_BEGIN}\n")[2].rpartition(NOTES_END)[0]

    def with_body(self, body: str, revision: int) -> Regions:
        """The same file with a new rendering."""
        return Regions(
            before=self.before,
            revision=revision,
            digest=digest_of(body),
            body=body,
            after=self.after,
        )

    def text(self) -> str:
        marker = f"<!-- runbook:begin revision={self.revision} sha256={self.digest} -->"
        return f"{self.before}{marker}\n{self.body}{END}\n{self.after}"


def digest_of(body: str) -> str:
    return sha256(body.encode()).hexdigest()


def fresh(body: str, revision: int) -> Regions:
    """A file that does not exist yet."""
    after = f"\n{NOTES_BEGIN}\n{NOTES_TEMPLATE}{NOTES_END}\n"
    return Regions(before="", revision=revision, digest=digest_of(body), body=body, after=after)


def take_apart(text: str) -> Regions:
    """Find the one pair of markers, or say what is wrong."""
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    found = _markers([line.rstrip("\n") for line in lines])
    begins, ends = found["begin"], found["end"]
    if not begins and not ends:
        raise MarkersBroken("it has no markers of ours")
    if len(begins) != 1 or len(ends) != 1:
        raise MarkersBroken(
            f"it has {len(begins)} begin and {len(ends)} end markers instead of one each"
        )
    begin, end = begins[0], ends[0]
    if end < begin:
        raise MarkersBroken(f"the end marker (line {end + 1}) comes before the begin marker")
    marker = BEGIN.fullmatch(lines[begin].rstrip("\n"))
    if marker is None:
        raise MarkersBroken(f"the begin marker (line {begin + 1}) was altered")
    notes = (found["notes_begin"], found["notes_end"])
    if [len(side) for side in notes] not in ([0, 0], [1, 1]):
        raise MarkersBroken("its notes markers are not one pair")
    if notes[0] and not end < notes[0][0] < notes[1][0]:
        raise MarkersBroken("its notes markers are not in order below the end marker")
    return Regions(
        before="".join(lines[:begin]),
        revision=int(marker[1]),
        digest=marker[2],
        body="".join(lines[begin + 1 : end]),
        after="".join(lines[end + 1 :]),
    )


def _markers(lines: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"begin": [], "end": [], "notes_begin": [], "notes_end": []}
    fence = ""
    for number, line in enumerate(lines):
        opening = FENCE.match(line)
        if fence:
            if opening and opening[1].startswith(fence) and line.strip() == opening[1]:
                fence = ""
        elif opening:
            fence = opening[1]
        elif line.startswith(LOOKS_LIKE_BEGIN):
            found["begin"].append(number)
        elif line == END:
            found["end"].append(number)
        elif line == NOTES_BEGIN:
            found["notes_begin"].append(number)
        elif line == NOTES_END:
            found["notes_end"].append(number)
    return found
