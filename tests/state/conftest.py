"""A store in a fresh folder, with a clock of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from state import open_store
from tests.state.builders import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from state import Store


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / ".runbook" / "state.db"


@pytest.fixture
def store(db: Path) -> Iterator[Store]:
    with open_store(db, actor="tester", clock=Clock()) as opened:
        yield opened
