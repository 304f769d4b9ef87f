"""The bundled runbooks are valid; the repository's PROGRESS.md is one of them, freshly rendered."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.cli.setup import bundled
from tests.support.workspaces import cli

REPOSITORY = Path(__file__).parent.parent.parent


def test_there_is_one_for_a_trial_and_one_for_the_real_thing() -> None:
    assert {"demo", "qwen3.6-27b-dflash"} <= set(bundled())


@pytest.mark.parametrize("name", bundled())
def test_each_makes_a_workspace(tmp_path: Path, name: str) -> None:
    made = cli(tmp_path, "init", name, "--dir", str(tmp_path / "ws"))
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "ws" / "PROGRESS.md").exists()


def test_progress_md_of_the_repository_is_current(tmp_path: Path) -> None:
    cli(tmp_path, "init", "qwen3.6-27b-dflash", "--dir", str(tmp_path))
    fresh = (tmp_path / "PROGRESS.md").read_text(encoding="utf-8")
    kept = (REPOSITORY / "PROGRESS.md").read_text(encoding="utf-8")
    assert kept == fresh, "make it anew: scripts/render_progress.sh"
