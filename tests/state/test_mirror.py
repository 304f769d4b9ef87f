"""PROGRESS.md on disk: people's words survive, edits are told, doubtful files are left alone."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from state import mirror
from state.mirror import is_current, write_progress
from state.regions import NOTES_BEGIN, NOTES_END, MarkersBroken, digest_of, fresh, take_apart

if TYPE_CHECKING:
    from pathlib import Path

BODY = "# Title\n\n- [ ] a\n- [ ] b\n"
LATER = "# Title\n\n- [x] a\n- [ ] b\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "PROGRESS.md"


def test_a_new_file_has_our_part_and_theirs(file: Path) -> None:
    written = write_progress(file, BODY, revision=3)
    assert (written.path, written.changed, written.problem, written.edit) == (file, True, "", "")
    text = file.read_text()
    assert text.startswith(f"<!-- runbook:begin revision=3 sha256={digest_of(BODY)} -->\n# Title")
    assert text.index("runbook:end") < text.index(NOTES_BEGIN) < text.index(NOTES_END)
    assert is_current(file, BODY, revision=3)
    assert not is_current(file, LATER, revision=3)
    assert not is_current(file, BODY, revision=4)


def test_equal_bytes_are_not_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_progress(file, BODY, revision=3)
    before = file.stat()

    def never(path: Path, data: bytes) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(mirror, "write_file", never)
    assert not write_progress(file, BODY, revision=3).changed
    assert file.stat().st_ino == before.st_ino


def test_notes_and_everything_else_of_people_stay(file: Path) -> None:
    write_progress(file, BODY, revision=3)
    text = file.read_text()
    mine = "Ask Kim about the disk.\n\n```\n<!-- runbook:end -->\n```\n"
    text = text.replace(NOTES_END, f"{mine}{NOTES_END}") + "\nbelow\n"
    file.write_text(f"above\n{text}")
    written = write_progress(file, LATER, revision=4)
    assert (written.changed, written.edit) == (True, "")
    regions = take_apart(file.read_text())
    assert regions.body == LATER
    assert mine in regions.notes
    assert regions.before == "above\n"
    assert regions.after.endswith("\nbelow\n")


@pytest.mark.parametrize("with_base", [True, False])
def test_an_edit_in_our_part_is_handed_over_and_undone(file: Path, with_base: bool) -> None:
    base = file.with_name("base.md") if with_base else None
    write_progress(file, BODY, revision=3, base=base)
    file.write_text(file.read_text().replace("- [ ] b", "- [x] b\n- I did b by hand"))
    written = write_progress(file, LATER, revision=4, base=base)
    assert "+- I did b by hand" in written.edit.split("\n")
    assert written.edited_revision == 3
    if with_base:
        assert written.edit == "-- [ ] b\n+- [x] b\n+- I did b by hand"
    assert take_apart(file.read_text()).body == LATER
    assert write_progress(file, LATER, revision=4, base=base).edit == ""


def test_an_edit_is_recorded_before_it_is_undone(file: Path) -> None:
    write_progress(file, BODY, revision=3)
    file.write_text(file.read_text().replace("- [ ] b", "- my words"))
    edited = file.read_text()

    def die(edit: str, revision: int) -> None:
        assert ("+- my words" in edit, revision) == (True, 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_progress(file, LATER, revision=4, record=die)
    assert file.read_text() == edited
    told: list[str] = []
    write_progress(file, LATER, revision=4, record=lambda edit, _: told.append(edit))
    assert len(told) == 1
    assert is_current(file, LATER, revision=4)


def test_a_git_conflict_is_settled_only_on_request(file: Path) -> None:
    ours, theirs = (
        fresh(body, revision).text().replace(NOTES_END, f"{word}\n{NOTES_END}")
        for body, revision, word in ((BODY, 3, "mine"), (LATER, 4, "yours"))
    )
    file.write_text(f"<<<<<<< HEAD\n{ours}=======\n{theirs}>>>>>>> branch\n")
    assert write_progress(file, LATER, revision=5).problem
    written = write_progress(file, LATER, revision=5, force=True)
    assert (written.path, written.problem, written.edit) == (file, "", "")
    assert is_current(file, LATER, revision=5)
    notes = take_apart(file.read_text()).notes
    assert "mine\n" in notes
    assert "yours\n" in notes


def test_other_line_ends_are_no_edit(file: Path) -> None:
    write_progress(file, BODY, revision=3)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    written = write_progress(file, BODY, revision=3)
    assert (written.changed, written.edit, written.problem) == (True, "", "")
    assert b"\r" not in file.read_bytes()


def whole() -> str:
    return fresh(BODY, 3).text()


BEGIN_LINE = whole().partition("\n")[0]
END_LINE = "<!-- runbook:end -->"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("# My own plan\n", "no markers"),
        (whole().replace(END_LINE, ""), "1 begin and 0 end"),
        (whole().replace(BEGIN_LINE, ""), "0 begin and 1 end"),
        (f"{whole()}{whole()}", "2 begin and 2 end"),
        (whole().replace("- [ ] a", END_LINE), "1 begin and 2 end"),
        (whole().replace("- [ ] a", BEGIN_LINE), "2 begin and 1 end"),
        (f"{END_LINE}\n{BEGIN_LINE}\n", "before the begin"),
        (whole().replace("revision=3", "revision=three"), "was altered"),
        (whole().replace("# Title", "```"), "1 begin and 0 end"),
        (f"~~~\n{whole()}", "no markers"),
        (whole().replace(f"{NOTES_END}\n", ""), "notes markers are not one pair"),
        (f"{NOTES_BEGIN}\n{NOTES_END}\n{whole()}", "notes markers are not one pair"),
        (
            f"{NOTES_BEGIN}\n{NOTES_END}\n{whole().partition(NOTES_BEGIN)[0]}",
            "notes markers are not in order",
        ),
        (f"  {whole()}".replace("\n<!--", "\n <!--"), "no markers"),
    ],
)
def test_a_doubtful_file_is_left_alone(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(MarkersBroken, match=why):
        take_apart(text)
    written = write_progress(file, LATER, revision=4)
    assert file.read_text() == text
    assert written.path == file.with_name("PROGRESS.runbook.md")
    assert why in written.problem
    assert written.hint
    assert take_apart(written.path.read_text()).body == LATER
    again = write_progress(file, LATER, revision=4)
    assert (again.changed, again.problem) == (False, written.problem)


def test_markers_quoted_in_prose_are_prose(file: Path) -> None:
    write_progress(file, BODY, revision=3)
    quoting = f"The line {END_LINE} ends it.\n    {END_LINE}\n```text\n{BEGIN_LINE}\n```\n"
    file.write_text(quoting + file.read_text())
    written = write_progress(file, LATER, revision=4)
    assert written.problem == ""
    assert file.read_text().startswith(quoting)


def test_a_file_that_is_no_text_is_left_alone(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    written = write_progress(file, BODY, revision=1)
    assert "not UTF-8" in written.problem
    assert file.read_bytes() == b"\xff\xfe\x00"


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_filled(file: Path, content: str) -> None:
    file.write_text(content)
    assert write_progress(file, BODY, revision=1).problem == ""
    assert is_current(file, BODY, revision=1)


def test_a_late_writer_does_not_turn_the_file_back(file: Path) -> None:
    write_progress(file, LATER, revision=4)
    written = write_progress(file, BODY, revision=3)
    assert not written.changed
    assert "shows revision 4" in written.problem
    assert take_apart(file.read_text()).body == LATER
    assert write_progress(file, BODY, revision=3, force=True).changed


def test_a_link_and_the_mode_survive(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "docs" / "progress.md"
    real.parent.mkdir()
    real.touch(mode=0o640)
    real.chmod(0o640)
    file.symlink_to(real)
    write_progress(file, BODY, revision=1)
    assert file.is_symlink()
    assert is_current(real, BODY, revision=1)
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("point", ["fsync", "replace"])
def test_a_crash_at_any_point_leaves_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    write_progress(file, BODY, revision=3)
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if point == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(type(file), "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_progress(file, LATER, revision=4)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["PROGRESS.md"]


def test_what_killed_writers_left_is_removed_by_a_later_one(file: Path) -> None:
    old, young, other = (
        file.with_name(name)
        for name in (".PROGRESS.md.11.partial", ".PROGRESS.md.12.partial", ".notes.11.partial")
    )
    for path in (old, young, other):
        path.write_text("half a fi")
    for path in (old, other):
        os.utime(path, (0, path.stat().st_mtime - 3700))
    write_progress(file, BODY, revision=3)
    assert sorted(file.parent.iterdir()) == sorted([other, young, file])


def test_writers_at_once_end_with_the_latest(file: Path) -> None:
    def write(revision: int) -> None:
        write_progress(file, f"# {revision}\n", revision=revision)

    threads = [threading.Thread(target=write, args=[revision]) for revision in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert take_apart(file.read_text()).revision == 12
    assert [path.name for path in file.parent.iterdir()] == ["PROGRESS.md"]
