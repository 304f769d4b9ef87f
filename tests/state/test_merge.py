"""Notes of two people: both sides are kept, through git's conflict markers too."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.conflicts import has_conflict, resolve
from state.merge import merge_notes
from state.regions import NOTES_END, MarkersBroken, fresh, take_apart

if TYPE_CHECKING:
    from pathlib import Path


def text(words: str) -> str:
    return "".join(f"{word}\n" for word in words.split())


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged", "overlapped"),
    [
        ("a b c", "a b c", "a b c", "a b c", False),
        ("a b c", "a x b c", "a b c", "a x b c", False),
        ("a b c", "a b c", "a b c y", "a b c y", False),
        ("a b c", "x a b c", "a b c y", "x a b c y", False),
        ("a b c", "a X c", "a X c", "a X c", False),
        ("a b c", "a c", "a b c y", "a c y", False),
        ("a b c", "a X c", "a Y c", "a [here] X [there] Y c", True),
        ("a b c", "a c", "a B c", "a B c", True),
        ("a b c", "a B c", "a c", "a B c", True),
        ("", "x", "y", "[here] x [there] y", True),
        ("", "x", "x y", "x y", False),
        ("a", "a x", "a y", "a [here] x [there] y", True),
        ("a b c d", "", "a b c d", "", False),
        ("a b c d", "a B c d", "a b C d", "a B C d", False),
    ],
)
def test_merging(base: str, ours: str, theirs: str, merged: str, overlapped: bool) -> None:
    result = merge_notes(text(base), text(ours), text(theirs))
    assert (result.text, result.overlapped) == (text(merged), overlapped)


LINES = st.lists(st.sampled_from("abcde"), max_size=7).map(lambda words: text(" ".join(words)))


@given(LINES, LINES)
def test_one_side_alone_is_taken_whole(base: str, side: str) -> None:
    assert merge_notes(base, side, base).text == side
    assert merge_notes(base, base, side).text == side
    assert merge_notes(base, side, side).text == side


@given(LINES, LINES, LINES)
def test_no_new_word_of_anybody_is_dropped(base: str, ours: str, theirs: str) -> None:
    merged = merge_notes(base, ours, theirs).text.splitlines()
    for line in {*ours.splitlines(), *theirs.splitlines()} - set(base.splitlines()):
        assert line in merged


def conflict(ours: str, theirs: str, *, base: str | None = None) -> str:
    """The two files as git leaves them where every line differs."""
    middle = "" if base is None else f"||||||| base\n{base}"
    return f"<<<<<<< HEAD\n{ours}{middle}=======\n{theirs}>>>>>>> branch\n"


def file_with(notes: str, body: str, revision: int) -> str:
    return fresh(body, revision).text().replace(NOTES_END, f"{notes}{NOTES_END}")


@pytest.mark.parametrize("with_base", [True, False])
def test_a_conflict_in_both_parts_is_resolved(with_base: bool) -> None:
    base = file_with("old\n", "# 1\n", 1) if with_base else None
    broken = conflict(
        file_with("old\nours\n", "# 2\n", 2), file_with("old\ntheirs\n", "# 3\n", 3), base=base
    )
    assert has_conflict(broken)
    resolved = resolve(broken, "# 4\n", revision=4)
    regions = take_apart(resolved)
    assert (regions.body, regions.revision, regions.edited) == ("# 4\n", 4, False)
    assert [regions.notes.count(word) for word in ("old", "ours", "theirs")] == [1, 1, 1]
    assert not has_conflict(resolved)


@pytest.mark.parametrize(
    "broken",
    [
        "<<<<<<< HEAD\nno end\n",
        "<<<<<<< HEAD\n<<<<<<< HEAD\n=======\n>>>>>>> x\n",
        conflict("not ours\n", "at all\n"),
    ],
)
def test_what_cannot_be_told_apart_is_not_guessed(broken: str) -> None:
    with pytest.raises(MarkersBroken):
        resolve(broken, "# 1\n", revision=1)


def test_a_heading_underlined_with_equal_signs_is_no_conflict() -> None:
    assert not has_conflict("Title\n=======\n>>>>>>> quoted deep\n")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("style", ["merge", "diff3", "zdiff3"])
def test_what_git_really_leaves(tmp_path: Path, style: str) -> None:
    def git(*args: str, check: bool = True) -> None:
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(tmp_path), *args],
            check=check,
            capture_output=True,
        )

    file = tmp_path / "PROGRESS.md"

    def commit(notes: str, body: str, revision: int) -> None:
        file.write_text(file_with(notes, body, revision))
        git("add", ".")
        git("commit", "-qm", notes)

    git("init", "-q", "-b", "main")
    commit("old\n", "# Title\n\n- [ ] a\n- [ ] b\n", 1)
    git("checkout", "-qb", "branch")
    commit("old\ntheirs\n", "# Title\n\n- [ ] a\n- [x] b\n", 3)
    git("checkout", "-q", "main")
    commit("old\nours\n", "# Title\n\n- [x] a\n- [ ] b\n", 2)
    git("-c", f"merge.conflictStyle={style}", "merge", "branch", check=False)

    broken = file.read_text()
    assert has_conflict(broken)
    regions = take_apart(resolve(broken, "# new\n", revision=9))
    assert regions.body == "# new\n"
    assert [regions.notes.count(word) for word in ("old", "ours", "theirs")] == [1, 1, 1]
