"""An engine of its own: `runbook run` in a session of its own, so that it outlives who asked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.errors import Exit, RunbookError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runbook.reader import Reader

SETTLE_S = 20.0
"""How long a new engine may take to hold the lease or to end."""
STEP_S = 0.05
LAST_BYTES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """An engine that was started, and where it writes what it does."""

    pid: int
    log: Path
    ended: int | None
    """Its exit code when it had ended before anybody could see it hold the lease."""
    said: str = ""
    """The end of what it printed, when it had ended."""


def start_engine(reader: Reader, verb: Sequence[str]) -> Detached:
    """Starts `runbook VERB...` detached, and returns once it works or has ended.

    Raises:
        RunbookError: somebody already advances the graph (exit 6), or it gave no sign.
    """
    holder = reader.engine_holder(reader.snapshot())
    if holder:
        raise RunbookError(
            f"{holder} advances the graph already.",
            hint="Wait for it: `runbook wait`.",
            exit_code=Exit.CONFLICT,
        )
    log = reader.workspace.private / "engine.log"
    argv = [sys.executable, "-m", "runbook", "-w", str(reader.workspace.root), *verb]
    start = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "RUNBOOK_ACTOR": reader.store.actor},
        )
    return _settled(reader, process, log, start)


def _settled(reader: Reader, process: subprocess.Popen[bytes], log: Path, start: int) -> Detached:
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        ended = process.poll()
        if ended is not None:
            return Detached(pid=process.pid, log=log, ended=ended, said=_printed(log, start))
        if reader.engine_holder(reader.snapshot()):
            return Detached(pid=process.pid, log=log, ended=None)
        time.sleep(STEP_S)
    raise RunbookError(
        f"The engine (pid {process.pid}) gave no sign in {SETTLE_S:g} s: {_printed(log, start)}",
        hint=f"It may still begin; see {log}.",
        exit_code=Exit.UNKNOWN,
    )


def _printed(log: Path, start: int) -> str:
    return log.read_bytes()[start:][-LAST_BYTES:].decode(errors="replace").strip()
