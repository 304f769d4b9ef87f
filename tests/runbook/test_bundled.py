"""The bundled runbooks are valid; the repository's PROGRESS.md is one of them, freshly rendered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runbook.cli.setup import bundled
from tests.support.workspaces import cli

REPOSITORY = Path(__file__).parent.parent.parent


def test_there_is_one_for_a_trial_and_two_for_the_real_thing() -> None:
    assert {"demo", "qwen3-8b-dflash", "qwen3.6-27b-dflash"} <= set(bundled())


@pytest.mark.parametrize("name", bundled())
def test_each_makes_a_workspace(tmp_path: Path, name: str) -> None:
    made = cli(tmp_path, "init", name, "--dir", str(tmp_path / "ws"))
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "ws" / "PROGRESS.md").exists()


@pytest.mark.parametrize("name", [name for name in bundled() if name != "demo"])
def test_each_tells_every_command_before_anything_is_rented(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "ws"
    cli(tmp_path, "init", name, "--dir", str(folder))
    told = cli(folder, "run", "--dry-run", "--json")
    would = json.loads(told.stdout)["data"]["would"]
    listed = json.loads(cli(folder, "status", "--json").stdout)["data"]["tasks"]
    started = [line.split()[1].rstrip(",") for line in would if line.startswith("start ")]
    assert sorted(started) == sorted(task["id"] for task in listed)
    said = "\n".join(would)
    assert "not known yet" not in said
    for words in ("sglang serve", "dflash generate", "dflash put", "dflash plan", "dflash train"):
        assert words in said


def test_no_figure_of_one_run_is_in_a_runbook() -> None:
    """They are parameters there; the simulation has the seed's."""
    figures = ("902087", "902_087", "902,087", "1805", "1,805", "1.866", "87.5", "2068", "2,068")
    for name in bundled():
        text = (REPOSITORY / "runbook" / "library" / f"{name}.yaml").read_text(encoding="utf-8")
        assert [figure for figure in figures if figure in text] == [], name


def test_progress_md_of_the_repository_is_current(tmp_path: Path) -> None:
    cli(tmp_path, "init", "qwen3.6-27b-dflash", "--dir", str(tmp_path))
    fresh = (tmp_path / "PROGRESS.md").read_text(encoding="utf-8")
    kept = (REPOSITORY / "PROGRESS.md").read_text(encoding="utf-8")
    assert kept == fresh, "make it anew: scripts/render_progress.sh"
