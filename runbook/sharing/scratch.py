"""Folders for the copies that `push` and `pull` make, until they end; who is killed leaves its own.

Its owner holds a lock on the folder itself, which goes with the process, however that dies. The
next `push` or `pull` of the same user removes what nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".scratch"
OURS = re.compile(rf"runbook-(push|pull)-\w+{re.escape(SUFFIX)}")


@contextmanager
def scratch(verb: Literal["push", "pull"]) -> Iterator[Path]:
    """An empty folder of this process, gone in the end."""
    _sweep(Path(tempfile.gettempdir()))
    while True:
        with tempfile.TemporaryDirectory(prefix=f"runbook-{verb}-", suffix=SUFFIX) as name:
            held = _hold(Path(name))
            if held is None:
                continue
            try:
                yield Path(name)
            finally:
                os.close(held)
            return


def _hold(folder: Path) -> int | None:
    """In use until this is closed; None when it was taken for a dead one's before."""
    with suppress(FileNotFoundError):
        held = _open(folder)
        with suppress(OSError):  # a file system without locks: nothing is ever swept there
            fcntl.flock(held, fcntl.LOCK_EX)
        if _is_at(folder, held):
            return held
        os.close(held)
    return None


def _sweep(place: Path) -> None:
    """Removes what lies there of this user and is held by nobody."""
    try:
        found = [folder for folder in place.iterdir() if OURS.fullmatch(folder.name)]
    except OSError:  # such as a folder in which one may write, and not look
        return
    for folder in found:
        with suppress(OSError):
            _remove_unheld(folder)


def _remove_unheld(folder: Path) -> None:
    """Raises OSError when it is held, no folder, or closed to us."""
    held = _open(folder)
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(folder, held):
                shutil.rmtree(folder)
    finally:
        os.close(held)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_at(folder: Path, held: int) -> bool:
    try:
        return os.path.samestat(folder.lstat(), os.fstat(held))
    except FileNotFoundError:
        return False
