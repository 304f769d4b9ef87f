"""Every test is a person who has named no workspace yet, with a temporary folder of their own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runbook import report

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def no_workspace_chosen() -> Iterator[None]:
    """A process of ours has one command, a process of the tests many."""
    yield
    report.forget()


@pytest.fixture(autouse=True, scope="session")
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Crash reports, and what else goes to the shared folder, go with the tests that made them.

    As open as that one, for tests that act as another user, and with a name as short: sockets lie
    in it, whose paths may have a hundred letters.
    """
    tmp_path_factory.getbasetemp()  # stays where it is, for whoever looks at what failed
    with tempfile.TemporaryDirectory(prefix="rb-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o1777)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", folder)
            patch.setenv("TMPDIR", folder)
            yield
