"""Servers that take no new requests for a while, as the workspace on this host says.

Each is a file HOST:PORT in `draining/` beside the jobs; a server that is restarted is there until
it is ready again. Outside of a runbook's job there is no such folder, and nobody drains.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

LOOK_S = 1.0


class Draining:
    """Knows which servers drain; looks at the folder once a second at most."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: frozenset[str] = frozenset()
        self._next = 0.0

    @classmethod
    def of_job(cls) -> Draining:
        """By the job that this process is the payload of; JOBS/ATTEMPT is its folder."""
        job = os.environ.get("RUNBOOK_JOB_DIR")
        return cls(Path(job).parent.parent / "draining" if job else None)

    def __contains__(self, url: str) -> bool:
        now = time.monotonic()
        if self._folder is not None and now >= self._next:
            self._next = now + LOOK_S
            try:
                self._known = frozenset(path.name for path in self._folder.iterdir())
            except OSError:
                self._known = frozenset()
        return url.partition("://")[2] in self._known
