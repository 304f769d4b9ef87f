"""What every part of the program on the host uses: requests, refusals, names, injected faults."""

from __future__ import annotations

import binascii
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any, Dict

if TYPE_CHECKING:
    from collections.abc import Callable

JSON = Dict[str, Any]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

LOGIN = {"umask": 0o022}  # what the account has; job directories are for it alone

INJECT: JSON = {}  # faults that a test asks for: facts_root, crash_at, clock_file ...


class Refused(Exception):
    """A request that must not be carried out; becomes the answer."""

    def __init__(self, error: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.answer: JSON = dict(details, ok=False, error=error, message=message)


def crash_point(name: str) -> None:
    """Die here, as by kill -9, when a test asked for it."""
    if INJECT.get("crash_at") == name:
        os.kill(os.getpid(), signal.SIGKILL)


def step_clock() -> None:
    """Shift the wall clock of this process by what a test's file says at the time."""
    real, path = time.time, str(INJECT["clock_file"])

    def stepped() -> float:
        with open(path) as file:
            return real() + float(file.read() or 0)

    time.time = stepped


def utc() -> str:
    """For people to read, never to decide by."""
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03d+00:00" % (now % 1 * 1000)


STREAMS = {"out": "out.log", "err": "err.log", "progress": "progress.jsonl"}


def checked_name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value) or value.endswith(".tmp"):
        raise Refused("usage", f"{what} {value!r} is not a plain name")
    return value


def job_path(workspace: str, attempt: Any) -> str:
    return os.path.join(workspace, "jobs", checked_name(attempt, "attempt"))


def packed(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def wait_until(true: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
