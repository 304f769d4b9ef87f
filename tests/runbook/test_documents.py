"""Documents to re-read: listed with their digest, told when they changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from runbook.errors import RunbookError
from state import StateError
from state.doctor import examine
from tests.support.workspaces import cli, make

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  one: {title: One, phase: one, step: shell, with: {argv: ["true"]}}
"""


def test_a_listed_document_is_shown_and_its_change_told(tmp_path: Path) -> None:
    with make(tmp_path / "ws", TASKS) as service:
        notes = tmp_path / "ws" / "plan.md"
        notes.write_text("first")
        document = service.add_document(str(notes), title="What we want")
        revision = service.store.revision()
        service.add_document("plan.md")
        assert service.store.revision() == revision  # nothing new
        assert (document.path, document.size) == ("plan.md", 5)
        assert service.view().documents == {"plan.md": "same"}
        assert "`plan.md` What we want" in service.brief()
        assert "`plan.md` What we want" in service.workspace.progress_file.read_text()
        notes.write_text("later")
        assert service.view().documents == {"plan.md": "changed"}
        assert "changed since it was listed" in service.brief()
        assert service.progress_is_current()  # PROGRESS.md tells of a revision, not of now
        rows = json.loads(cli(tmp_path / "ws", "doc", "list", "--json").stdout)
        assert rows["data"]["documents"][0]["state"] == "changed"
        service.add_document("plan.md")  # read again: known as it is now
        assert service.view().documents == {"plan.md": "same"}
        assert service.snapshot().documents[0].title == "What we want"
        notes.unlink()
        assert service.view().documents == {"plan.md": "gone"}
        service.remove_document("plan.md")
        assert service.snapshot().documents == ()
        assert examine(service.workspace.database) == []


def test_what_is_not_there_is_not_listed(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        with pytest.raises(RunbookError, match="cannot be read"):
            service.add_document("nothing.md")
        with pytest.raises(RunbookError, match="cannot be read"):
            service.add_document(str(tmp_path))
        with pytest.raises(StateError, match="is not listed"):
            service.remove_document("nothing.md")
