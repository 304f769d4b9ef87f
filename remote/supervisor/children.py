"""Work that may hang, in a child with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(work: Callable[[], Any], limit_s: float, *, kill: bool = True) -> tuple[bool, Any]:
    """The result of `work` from a child process, or (False, why)."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ours)
            os.setpgid(0, 0)
            # One that hangs must not keep the asker's channel open.
            null = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(null, standard)
            data = json.dumps(work()).encode()
            while data:
                data = data[os.write(theirs, data) :]
            code = 0
        finally:
            os._exit(code)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # on both sides: whoever comes first
    os.close(theirs)
    data, came = b"", False
    try:
        came, data = _read_until_end(ours, time.monotonic() + limit_s)
    finally:
        os.close(ours)
        if not came and kill:  # also when our own limit ends us in the middle
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        # One that hangs in the kernel cannot be reaped now: leave it to init, do not wait.
        os.waitpid(pid, 0 if came else os.WNOHANG)
    if not came:
        return False, f"no answer in {limit_s:.1f} s"
    if not data:
        return False, "the child that looked died"
    return True, json.loads(data.decode())


def _read_until_end(fd: int, deadline: float) -> tuple[bool, bytes]:
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return False, data
        piece = os.read(fd, 1 << 16)
        if not piece:
            return True, data
        data += piece
