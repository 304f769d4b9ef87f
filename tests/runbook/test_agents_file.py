"""The section for coding agents: idempotent, and the user's own text stays byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.agents_file import END, NAME, SECTION, _with_section, write_section
from runbook.errors import RunbookError
from tests.support.workspaces import cli

if TYPE_CHECKING:
    from pathlib import Path

OWN = st.text().filter(lambda text: "<!-- runbook:" not in text and "\r" not in text)


def test_a_file_is_made_and_stays_as_it_is(tmp_path: Path) -> None:
    assert write_section(tmp_path) is True
    assert (tmp_path / NAME).read_text() == SECTION
    assert write_section(tmp_path) is False


@given(before=OWN, after=OWN)
def test_own_text_around_it_is_kept(
    tmp_path_factory: pytest.TempPathFactory, before: str, after: str
) -> None:
    path = tmp_path_factory.getbasetemp() / NAME
    first = _with_section(before, path)
    assert first.startswith(before)
    assert first.endswith(SECTION)
    old = first.replace("Before anything else", "An older text") + after
    renewed = _with_section(old, path)
    assert renewed == first + after
    assert _with_section(renewed, path) == renewed


@pytest.mark.parametrize("text", [SECTION + SECTION, SECTION.replace(END, ""), f"{END}\n{SECTION}"])
def test_damaged_markers_are_told_and_nothing_is_written(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(RunbookError, match="damaged"):
        write_section(tmp_path)
    assert (tmp_path / NAME).read_text() == text


def test_init_writes_it_when_asked(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("# Ours\n")
    made = cli(tmp_path, "init", "demo", "--dir", str(tmp_path), "--agents")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / NAME).read_text() == "# Ours\n\n" + SECTION
