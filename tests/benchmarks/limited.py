"""A part of a benchmark in a process of its own: what hangs or fails costs its own row only.

The part calls `watched` first. At its limit it writes where each of its threads is and ends, also
when the interpreter is held by a compiler or a driver; what does not end even then is killed, with
the workers that it started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

GRACE_S = 20.0
"""To begin and to end; after that it is killed."""
SAYING_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a part printed, and why it gave no more; empty when it ended well."""

    output: str
    problem: str
    said: str
    """Its standard error: warnings, and where it was."""


def watched(limit_s: float) -> None:
    """End this process after so many seconds, and say where it is."""
    faulthandler.dump_traceback_later(limit_s, exit=True)


def bounded(argv: Sequence[str], limit_s: float) -> Outcome:
    """Run it; whatever it does, this returns soon after the limit."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        part = subprocess.Popen(
            argv, stdout=out, stderr=err, start_new_session=True,
            env=os.environ | {"PYTHONFAULTHANDLER": "1"},
        )  # fmt: skip
        late = False
        try:
            part.wait(limit_s + GRACE_S)
        except subprocess.TimeoutExpired:
            late = True
            _ask_where(part.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(part.pid, signal.SIGKILL)  # its compile workers too
            with contextlib.suppress(subprocess.TimeoutExpired):
                part.wait(GRACE_S)  # one that a driver holds is left behind
        out.seek(0)
        err.seek(0)
        output, said = out.read(), err.read()
    return Outcome(output=output, problem=_problem(part.returncode, late, limit_s, said), said=said)


def _ask_where(group: int) -> None:
    """Each process of a group writes where it is and ends: by turns, for they share a file, and the
    youngest first, for some end with the one that started them.
    """
    for pid in sorted((int(p.name) for p in Path("/proc").glob("[0-9]*")), reverse=True):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) != group:
                continue
            os.kill(pid, signal.SIGABRT)
            deadline = time.monotonic() + SAYING_S
            while _lives(pid) and time.monotonic() < deadline:
                time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _problem(code: int | None, late: bool, limit_s: float, said: str) -> str:
    lines = said.splitlines()
    if late or any(line.startswith("Timeout (") for line in lines):
        where = place(lines)
        return f"not finished after {limit_s:.0f} s" + (f", in {where}" if where else "")
    if code:
        return f"failed: {lines[-1][:120] if lines else f'exit code {code}'}"
    return ""


def place(lines: Sequence[str]) -> str:
    """The innermost frame of the main thread, which a dump names last."""
    begins = [i for i, line in enumerate(lines) if line.startswith(("Thread 0x", "Current thread"))]
    frames = [line for line in lines[begins[-1] :] if line.startswith('  File "')] if begins else []
    if not frames:
        return ""
    _, path, where = frames[0].split('"')
    return f"{'/'.join(path.split('/')[-3:])}{where}"
