"""Opening the terminal interface on a workspace."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from runbook.errors import RunbookError
from runbook.tui.app import RunbookApp
from runbook.tui.keyfile import keys_file, load_keys

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.tui.ports import ServicePort

YIELD_S = 0.001
"""A thread that reads gives way to the screen after this; 5 ms, the default, is felt in keys."""


def run_tui(workspace: Path, *, autorun: bool = False, read_only: bool = False) -> int:
    """Show a workspace until the person leaves; the exit code of what this process ran.

    Raises:
        RunbookError: the person's key file cannot be used, or there is no terminal.
    """
    from runbook.reader import Reader

    table = load_keys(keys_file(os.environ), required=bool(os.environ.get("RUNBOOK_KEYS")))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RunbookError(
            "The terminal UI needs a terminal.",
            hint="Without one: `runbook status`, `runbook brief`, `runbook run`.",
        )

    def opener() -> ServicePort:
        from runbook.service import Service

        return Service.open(workspace)

    app = RunbookApp(
        opener,
        reader=lambda: Reader.open(workspace),
        crash_file=workspace / ".runbook" / "crash.log",
        memory_file=workspace / ".runbook" / "tui.json",
        autorun=autorun,
        read_only=read_only,
        table=table,
    )
    sys.setswitchinterval(YIELD_S)
    try:
        code = app.run()
    finally:
        app.service.close()
    return app.return_code or 0 if code is None else code
