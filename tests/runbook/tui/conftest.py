"""A frozen workspace and an app on it; nothing moves by itself."""

from __future__ import annotations

import os

# Read once, when Textual is imported: animated scrolling makes Pilot wait for each of them.
os.environ["TEXTUAL_ANIMATIONS"] = "none"

from typing import TYPE_CHECKING, Any

import pytest

from runbook.tui.app import RunbookApp
from runbook.tui.widgets import bars
from tests.support.fake_service import NOW, World, example

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENVIRONMENT = {"LANG": "C.UTF-8", "TERM": "xterm-256color"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A drafter runbook in mid-run."""
    return example(tmp_path)


@pytest.fixture(autouse=True)
def patient_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said stays until the test has read it, however slow the machine is."""
    monkeypatch.setattr(bars, "GOOD_NEWS_S", 600.0)


@pytest.fixture
def make_app(world: World, tmp_path: Path) -> Callable[..., RunbookApp]:
    """Apps on the world, with a frozen clock."""

    def make(**options: Any) -> RunbookApp:
        options.setdefault("environment", ENVIRONMENT)
        return RunbookApp(
            world.open, crash_file=tmp_path / "crash.log", clock=lambda: NOW, **options
        )

    return make
