"""A tree that travels to a machine and back by the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.workspaces import cli

if TYPE_CHECKING:
    from pathlib import Path


def there_and_back(workspace: Path, folder: Path) -> None:
    """Sends a tree to the machine of the role `box`, fetches it again, and compares."""
    tree, there, back = folder / "tree", folder / "there", folder / "back"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "a").write_bytes(bytes(range(256)) * 500)
    (tree / "empty").touch()
    put = cli(workspace, "host", "put", "box", str(tree), str(there), "--json")
    assert put.returncode == 0, put.stderr
    assert json.loads(put.stdout)["data"]["report"]["files"] == 2
    got = cli(workspace, "host", "get", "box", str(there), str(back))
    assert got.returncode == 0, got.stderr
    assert "equal by sha256" in got.stdout
    assert (back / "deep" / "a").read_bytes() == (tree / "deep" / "a").read_bytes()
    assert (back / "empty").exists()
