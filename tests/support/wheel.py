"""Our distribution as a user gets it: one wheel built from this checkout, installed by itself.

The packages that it needs come from the environment of the tests; this checkout does not.
Use: `from tests.support.wheel import built_wheel, installed_wheel` (fixtures of the session).
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKOUT = Path(__file__).resolve().parents[2]
OURS = ("dflash", "remote", "runbook", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment into which only the wheel was installed."""

    folder: Path
    site: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, argv: Sequence[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Its Python with `argv`, in isolated mode: neither `cwd` nor PYTHONPATH is looked at."""
        return subprocess.run(
            [str(self.python), "-I", *argv], cwd=cwd, capture_output=True, text=True, check=False
        )


def build_wheel(folder: Path) -> Path:
    """The wheel, by the project's own build backend and without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path) -> Installed:
    """A fresh environment with the wheel; what it depends on is lent by ours."""
    venv.create(folder, symlinks=True)
    base = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", base))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-compile", "--disable-pip-version-check", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    (site / "lent.pth").write_text("".join(f"{path}\n" for path in lent_folders()))
    return Installed(folder=folder, site=site)


def lent_folders() -> list[str]:
    """Where the packages of this environment lie, without folders that hold ours."""
    found = [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "packages"))]
    return [str(path) for path in found if not any((path / name).is_dir() for name in OURS)]


@pytest.fixture(scope="session")
def built_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed_wheel(built_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install_wheel(built_wheel, tmp_path_factory.mktemp("installed") / "env")
