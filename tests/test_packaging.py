"""The distribution as users get it: what is in it, what it pulls in, that it works by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import BytesParser
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.wheel import CHECKOUT, built_wheel, installed_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from email.message import Message
    from pathlib import Path

    from tests.support.wheel import Installed

__all__ = ["built_wheel", "installed_wheel"]

OURS = ("runbook", "state", "remote", "dflash")
FOLDERS = {*OURS, ".ci", "docs", "scripts", "tests"}
HEAVY = {"torch", "transformers", "pyarrow", "sglang", "numpy", "triton", "mcp"}


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return BytesParser().parsebytes(archive.read(name))


def tracked() -> set[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *OURS]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return {name for name in found.stdout.split("\0") if name and (CHECKOUT / name).exists()}


def closure(requirements: Sequence[str], extra: str = "") -> set[str]:
    """All that these pull in, by what the environment of the tests has of them."""
    seen: set[str] = set()
    queue = [(Requirement(text), extra) for text in requirements]
    while queue:
        wanted, given = queue.pop()
        name = canonicalize_name(wanted.name)
        if wanted.marker and not wanted.marker.evaluate({"extra": given}):
            continue
        if name in seen:
            continue
        seen.add(name)
        try:
            below = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # not for this platform, or nothing that these tests use
        queue += [(Requirement(text), one) for text in below for one in (wanted.extras or {""})]
    return seen


def test_no_run_was_left_in_the_checkout() -> None:
    """A command that is tried here writes here, and is easily kept with all else."""
    command = ["git", "ls-files", "-z", "--cached"]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert {name.split("/")[0] for name in found.stdout.split("\0") if "/" in name} == FOLDERS


def test_every_file_of_ours_is_in_the_wheel_with_the_commit_and_nothing_else(
    built_wheel: Path,
) -> None:
    wanted = tracked()
    assert {f"{name}/py.typed" for name in OURS} <= wanted
    commit = {"runbook/commit.txt"} if (CHECKOUT / ".git").exists() else set()
    assert names(built_wheel) == wanted | commit


def test_a_wheel_made_from_the_sdist_is_the_same(built_wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build"]
    subprocess.run(
        [*build, "-t", "sdist", "-d", str(tmp_path)], cwd=CHECKOUT, check=True, capture_output=True
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert not (folder / "tests").exists()
    subprocess.run(
        [*build, "-t", "wheel", "-d", str(tmp_path)], cwd=folder, check=True, capture_output=True
    )
    (again,) = tmp_path.glob("*.whl")
    assert names(again) == names(built_wheel)


def test_a_plain_install_pulls_no_torch_and_the_lock_has_all_that_it_pulls(
    built_wheel: Path,
) -> None:
    found = metadata(built_wheel)
    wanted = found.get_all("Requires-Dist") or []
    plain, with_mcp = closure(wanted), closure(wanted, "mcp")
    assert not plain & HEAVY
    assert {"click", "paramiko", "textual", "pydantic"} <= plain
    lock = (CHECKOUT / "runbook" / "locks" / "operator.lock").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in lock.splitlines() if "==" in line and line[0] != "#")
    assert with_mcp - pins.keys() <= {"pip"}  # it is in every environment
    for text in wanted:
        requirement = Requirement(text)
        if not requirement.marker:
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), text


def test_its_extras(built_wheel: Path) -> None:
    found = metadata(built_wheel)
    assert set(found.get_all("Provides-Extra") or []) == {"dflash", "serve", "mcp", "curves", "dev"}
    wanted = found.get_all("Requires-Dist") or []
    assert {"torch", "transformers", "pyarrow"} <= closure(wanted, "dflash")
    assert "sglang" in closure(wanted, "serve")
    assert {"pytest", "mypy", "ruff", "mcp", "torch"} <= closure(wanted, "dev")


def test_the_installed_command_works_without_the_checkout(
    installed_wheel: Installed, tmp_path: Path
) -> None:
    def verb(*words: str) -> str:
        done = subprocess.run(
            [str(installed_wheel.folder / "bin" / "python"), "-I", "-m", "runbook", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    version = verb("--version")
    assert version.startswith("runbook 0.1.0 (" if (CHECKOUT / ".git").exists() else "runbook 0.")
    assert "valid" in verb("validate", "qwen3.6-27b-dflash", "-p", "store=s3://b/x")
    verb("init", "demo", "--dir", "demo", "--agents")
    assert "generate" in verb("-w", "demo", "status")
    assert "quit" in verb("tui", "--keys")
    done = installed_wheel.run(["-c", "import runbook.tui.app"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    asyncio.run(lists_tools(installed_wheel, tmp_path / "demo"))


async def lists_tools(installed: Installed, workspace: Path) -> None:
    argv = ["-I", "-m", "runbook", "-w", str(workspace), "mcp"]
    server = StdioServerParameters(command=str(installed.python), args=argv, cwd=str(workspace))
    async with Client(stdio_client(server)) as client:
        assert {"brief", "run"} <= {tool.name for tool in (await client.list_tools()).tools}


@pytest.mark.skipif("RUNBOOK_INSTALL" not in os.environ, reason="needs a package registry: soak")
def test_pip_installs_it_with_all_it_needs(built_wheel: Path, tmp_path: Path) -> None:
    """What `pipx install` and `uv tool install` do; `make soak` sets RUNBOOK_INSTALL."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    lock = CHECKOUT / "runbook" / "locks" / "operator.lock"
    command = [python, "-m", "pip", "install", "-q", "-c", lock, f"{built_wheel}[mcp]"]
    subprocess.run([str(word) for word in command], check=True)
    said = subprocess.run(
        [str(tmp_path / "env" / "bin" / "runbook"), "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.startswith("runbook ")
    assert not list((tmp_path / "env").rglob("torch"))
