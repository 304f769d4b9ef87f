"""Processes: which are a job's, and how they are ended for certain."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

from remote.supervisor.base import INJECT
from remote.supervisor.identity import start_ticks, stat_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote.supervisor.base import JSON

KILL_WAIT_S = 5.0


def process_ids() -> list[int]:
    """Those that we may see: without /proc, or where it hides others' processes, fewer."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def sees() -> str:
    """Whose processes we may see: "all", "own" (hidepid), "none" (no /proc)."""
    if os.path.exists("/proc/1/stat"):
        return "all"
    return "own" if os.path.exists("/proc/self/stat") else "none"


def environ_of(pid: int) -> set[bytes]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def command_of(pid: int) -> str:
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def describe(pid: int) -> JSON:
    # The name only: a command line may carry what its owner should not have put there.
    fields = stat_fields(pid)
    return {
        "pid": pid,
        "command": command_of(pid),
        "state": fields[0] if fields else "gone",
        "start_ticks": int(fields[19]) if len(fields) > 19 else 0,
    }


def is_live(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in ("Z", "X", "x")


def descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for other in process_ids():
        fields = stat_fields(other)
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(other)
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def marked(marks: dict[bytes, str]) -> dict[str, list[int]]:
    """Live processes by the mark (an environment entry) that they carry, in one walk of /proc."""
    found: dict[str, list[int]] = {}
    for pid in process_ids():
        if pid in (1, os.getpid()):
            continue
        for entry in environ_of(pid) & set(marks):
            if is_live(pid):
                found.setdefault(marks[entry], []).append(pid)
    return found


def marked_below(folder: str) -> dict[str, list[int]]:
    """Live processes by the job directory that their environment names, below a folder."""
    start = b"RUNBOOK_JOB_DIR=" + os.fsencode(folder)
    found: dict[str, list[int]] = {}
    for pid in process_ids():
        for entry in environ_of(pid):
            if entry.startswith(start) and pid not in (1, os.getpid()) and is_live(pid):
                found.setdefault(os.fsdecode(entry.partition(b"=")[2]), []).append(pid)
    return found


def job_mark(job: str) -> bytes:
    """What the payload's environment says even when the job directory is gone."""
    return b"RUNBOOK_JOB_DIR=" + os.fsencode(job)


def job_processes(job: str, supervisor: JSON, cookie: str) -> list[int]:
    """Every live process of a job: by its marks, and below its supervisor while that lives."""
    marks = {job_mark(job): job}
    if cookie:
        marks[b"RUNBOOK_COOKIE=" + cookie.encode()] = job
    found = set(marked(marks).get(job, []))
    pid = int(supervisor.get("pid") or 0)
    if pid > 1 and start_ticks(pid) == supervisor.get("start_ticks"):
        found |= {child for child in descendants(pid) if is_live(child)}
        found.discard(pid)
    return sorted(found - {1, os.getpid()})


def send(pid: int, number: int, ticks: int) -> None:
    """Signal one process, unless its number was given to another since it was looked at."""
    if pid <= 1 or pid == os.getpid() or start_ticks(pid) != ticks:
        return
    if pid in INJECT.get("spare", ()):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(leader: int, number: int) -> None:
    if leader > 1 and leader != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def end_all(find: Callable[[], list[int]], grace_s: float, tick: Callable[[], None]) -> list[JSON]:
    """TERM, grace, KILL to whatever `find` returns; the survivors, described."""
    told: set[tuple[int, int]] = set()
    killing = False
    pause = 0.01
    deadline = time.monotonic() + grace_s
    while True:
        pids = find()
        if not pids:
            return []
        if time.monotonic() > deadline:
            if killing:  # uninterruptible, or another user's: report, never loop
                return [describe(pid) for pid in pids]
            killing, told, deadline = (
                True,
                set(),
                time.monotonic() + float(INJECT.get("kill_wait_s", KILL_WAIT_S)),
            )
        for pid in pids:
            key = (pid, start_ticks(pid))
            if key not in told:
                told.add(key)
                send(pid, signal.SIGKILL if killing else signal.SIGTERM, key[1])
        tick()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def become_subreaper() -> None:
    """Orphans of the payload become our children, not those of PID 1 (Linux 3.4)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)
