"""Every test is a person who has named no workspace yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runbook import report
from runbook.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


Said = tuple[int, str, str]


@pytest.fixture(autouse=True)
def no_workspace_chosen() -> Iterator[None]:
    """A process of ours has one command, a process of the tests many."""
    yield
    report.forget()


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs a verb in this process: exit code, stdout, stderr."""

    def verb(folder: Path, *words: str) -> Said:
        monkeypatch.setattr("sys.argv", ["runbook", "-w", str(folder), *words])
        code = 0
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return verb
