"""What is shipped to hosts: whole, by itself usable, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from runbook.bundle import BUNDLES, bundle_files

if TYPE_CHECKING:
    from pathlib import Path


def unpack(name: str, folder: Path) -> Path:
    for path, content in bundle_files(name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_is_there_and_always_the_same(name: str) -> None:
    files = bundle_files(name)
    assert files
    assert list(files) == sorted(files)
    assert files == bundle_files(name)
    assert not [path for path in files if path.startswith(("/", ".")) or "__pycache__" in path]


def test_dflash_runs_from_its_bundle_alone(tmp_path: Path) -> None:
    """The host gets `dflash/` and nothing of the operator's side."""
    unpack("dflash", tmp_path / "shipped")
    assert {path.split("/")[0] for path in bundle_files("dflash")} == {"dflash"}
    other = tmp_path / "work"
    (other / "dflash").mkdir(parents=True)
    (other / "dflash" / "__init__.py").write_text("raise SystemExit('the wrong dflash')")
    code = "import dflash; print(dflash.__file__)"
    env = {"PYTHONPATH": str(tmp_path / "shipped"), "PYTHONSAFEPATH": "1"}
    for argv in (["-c", code], ["-m", "dflash", "--version"]):
        done = subprocess.run(
            [sys.executable, *argv], cwd=other, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert str(tmp_path / "shipped") in done.stdout or done.stdout.startswith("dflash ")


def test_an_unknown_bundle() -> None:
    with pytest.raises(KeyError):
        bundle_files("secrets")
