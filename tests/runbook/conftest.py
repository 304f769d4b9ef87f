"""Every test is a person who has named no workspace yet."""

from __future__ import annotations

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
