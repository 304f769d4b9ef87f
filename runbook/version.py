"""Which runbook this is: its version, and the commit that it was built from or runs from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from runbook import __version__

LIMIT_S = 10


def version_text() -> str:
    """`0.1.0 (3f0c2d9a1b4e)`; with `-dirty` where files differ from that commit."""
    baked = files("runbook") / "commit.txt"
    try:
        commit = baked.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        commit = of_checkout(Path(__file__).resolve().parents[1])
    return f"{__version__} ({commit})" if commit else __version__


def of_checkout(root: Path) -> str:
    """The commit of the checkout at `root`; empty where there is none, or no git."""
    import subprocess

    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=12"]
    try:
        found = subprocess.run(
            [*command, "--dirty"], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
