"""Advisory locks: the kernel lets go of them when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from remote.supervisor.base import Refused
from remote.supervisor.files import make_dirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FENCE_WAIT_S = 60.0


@contextlib.contextmanager
def fence(workspace: str) -> Iterator[None]:
    """Alone in deciding who owns tasks and resources of this workspace."""
    make_dirs(workspace)
    fd = os.open(
        os.path.join(workspace, "fence.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        if not take_lock(fd, FENCE_WAIT_S):
            raise Refused("busy", "another launch holds fence.lock of this workspace")
        yield
    finally:
        os.close(fd)


def take_lock(fd: int, wait_s: float, give_up: Callable[[], bool] = lambda: False) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if give_up() or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def lock_is_held(job: str) -> bool:
    """Whether a supervisor lives. Askers share the lock: none takes another for one."""
    try:
        fd = os.open(os.path.join(job, "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
