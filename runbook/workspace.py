"""Where a workspace keeps its things, and how one is found or made."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.errors import NoWorkspace

if TYPE_CHECKING:
    from pathlib import Path

RUNBOOK_FILE = "runbook.yaml"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory with `runbook.yaml`, `PROGRESS.md` and `.runbook/`."""

    root: Path

    @property
    def runbook_file(self) -> Path:
        """The file an operator writes."""
        return self.root / RUNBOOK_FILE

    @property
    def private(self) -> Path:
        """What the tool owns."""
        return self.root / ".runbook"

    @property
    def database(self) -> Path:
        """The graph."""
        return self.private / "state.db"

    @property
    def progress_file(self) -> Path:
        """The rendering of the graph for people."""
        return self.root / "PROGRESS.md"

    @property
    def live_file(self) -> Path:
        """The last observations, for other clients; not durable."""
        return self.private / "live.json"

    @property
    def share_file(self) -> Path:
        """Where the state was last pushed to or pulled from; absent when it never was."""
        return self.private / "share.json"

    def log(self, attempt: str, stream: str) -> Path:
        """The local copy of one stream (`out`, `err`, `progress`) of an attempt."""
        return self.private / "logs" / f"{attempt}.{stream}.log"


def find_workspace(start: Path) -> Workspace:
    """The workspace at `start` or above it, as git finds a repository.

    Raises:
        NoWorkspace: none is there.
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        workspace = Workspace(folder)
        if workspace.database.exists():
            return workspace
    raise NoWorkspace(
        f"No workspace in {start} or above it.",
        hint="Make one with `runbook init NAME --dir DIR`, or name it with `-w DIR`.",
    )


def default_actor() -> str:
    """Who acts, as recorded with every event: $RUNBOOK_ACTOR, or user@machine."""
    named = os.environ.get("RUNBOOK_ACTOR")
    if named:
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
