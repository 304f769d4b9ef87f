"""Shared memory that a job left behind.

A file of /dev/shm is a job's own when three things hold: it was not there when the job began, a
process of the job had it open, and it lies at the top, where `shm_open` puts its segments. Copies
of models lie in folders, and are for others too. It is removed when no process has it open.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Dict

from remote.supervisor.base import INJECT
from remote.supervisor.processes import process_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

Files = Dict[str, int]  # name at the top of /dev/shm -> inode


def folder() -> str:
    return str(INJECT.get("shm") or "/dev/shm")  # noqa: S108


def files() -> Files:
    """What lies at the top now."""
    found: Files = {}
    with contextlib.suppress(OSError), os.scandir(folder()) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    found[entry.name] = entry.inode()
    return found


def opened(pids: Iterable[int]) -> Files:
    """The files at the top that these processes have open or mapped."""
    found: Files = {}
    start = folder() + "/"
    # A mapping is known by its inode: a semaphore is made under a name that is gone at once.
    names = {inode: name for name, inode in files().items()}
    for pid in pids:
        for path in _open_paths(pid):
            name = path[len(start) :]
            if path.startswith(start) and name and "/" not in name:
                with contextlib.suppress(OSError):
                    info = os.lstat(path)
                    if stat.S_ISREG(info.st_mode):
                        found[name] = info.st_ino
        found.update({names[inode]: inode for inode in _mapped(pid, start) if inode in names})
    return found


def _open_paths(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                found.add(os.readlink("/proc/%d/fd/%s" % (pid, name)))
    return found


def _mapped(pid: int, start: str) -> set[int]:
    """Inodes of the files below a folder that a process has mapped."""
    try:
        with open("/proc/%d/maps" % pid, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.rstrip("\n").split(None, 5) for line in file]
    except OSError:
        return set()
    return {int(fields[4]) for fields in lines if len(fields) == 6 and fields[5].startswith(start)}


def remove(ours: Files) -> tuple[list[str], list[str]]:
    """Removes those of `ours` that nobody uses; the names that went, and those that stayed."""
    now = files()
    left = {name: inode for name, inode in ours.items() if now.get(name) == inode}
    if not left:
        return [], []
    used = opened(process_ids())
    gone, stayed = [], []
    for name in sorted(left):
        if used.get(name) == left[name]:
            stayed.append(name)
            continue
        try:
            os.unlink(os.path.join(folder(), name))
            gone.append(name)
        except FileNotFoundError:
            gone.append(name)
        except OSError:
            stayed.append(name)
    return gone, stayed
