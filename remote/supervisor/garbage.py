"""Old jobs take less room: their outcome and the ends of their logs stay.

Only jobs whose outcome the asker says to have stored, and only what this program itself put into
their directories: what a payload left there is named, not removed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING

from remote.supervisor.base import JSON, STREAMS, checked_name, job_path, utc
from remote.supervisor.files import read_json, to_bytes
from remote.supervisor.identity import identity
from remote.supervisor.locks import fence, lock_is_held
from remote.supervisor.logs import PAGE, punch_hole
from remote.supervisor.status import is_settled, status

if TYPE_CHECKING:
    from collections.abc import Iterable

TAIL = 64 << 10
KEPT = frozenset(["spec.json", "started", "exit.json", "exit.json.next", "out.json", "lock",
                  "dropped.json", "tombstone"])  # fmt: skip
REMOVED = frozenset(["sup.py", "ident.json", "ident.json.next", "beat", "holdings.json"])


def verb_collect_garbage(request: JSON, workspace: str) -> JSON:
    """Shrinks the settled ones of `collected`, but not the newest `keep` and the too young.

    With `only_tell` nothing is touched: what would go, and about how many bytes.
    """
    shrink = _would_free if request.get("only_tell") else _shrink
    names = sorted({checked_name(name, "attempt") for name in request["collected"]})
    gone, held = [], []
    with fence(workspace):
        ages = sorted((age, name) for name in names for age in _age(workspace, name))
        for age, name in ages[int(request["keep"]) :]:
            if age < float(request["older_than_s"]):
                continue
            found = status(workspace, name, identity())
            if is_settled(found):
                gone.append(shrink(job_path(workspace, name), name))
            else:
                held.append({"attempt": name, "why": f"{found['state']}: {found['reason']}"})
    return {"gone": [one for one in gone if one["freed_bytes"]], "held": held}


def _age(workspace: str, attempt: str) -> list[float]:
    """Seconds since it ended; nothing for one that is live, or not here, or did not start."""
    job = job_path(workspace, attempt)
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(job).st_mode) and not lock_is_held(job):
            ended = read_json(os.path.join(job, "exit.json"))[0] or {}
            mark = "exit.json" if ended.get("attempt") == attempt else "started"
            return [time.time() - os.lstat(os.path.join(job, mark)).st_mtime]
    return []


def _shrink(job: str, attempt: str) -> JSON:
    # All names below one open directory, so that no link can lead anywhere else.
    folder = os.open(job, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = {
            name: os.stat(name, dir_fd=folder, follow_symlinks=False)
            for name in sorted(os.listdir(folder))
        }
        files = {name: info for name, info in found.items() if stat.S_ISREG(info.st_mode)}
        freed = sum(_cut(folder, job, s) for s, name in STREAMS.items() if name in files)
        for name in REMOVED & set(files):
            os.unlink(name, dir_fd=folder)
            freed += files[name].st_blocks * 512
        if freed:
            _note(folder, b"%s: outcome and last %d bytes of logs kept\n" % (utc().encode(), TAIL))
        os.fsync(folder)
    finally:
        os.close(folder)
    return _answer(attempt, freed, found)


def _answer(attempt: str, freed: int, found: Iterable[str]) -> JSON:
    ours = {*KEPT, *REMOVED, *STREAMS.values(), "ctl"}
    return {"attempt": attempt, "freed_bytes": freed, "left": sorted(set(found) - ours)[:100]}


def _would_free(job: str, attempt: str) -> JSON:
    with os.scandir(job) as entries:
        found = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    files = {name: info for name, info in found.items() if stat.S_ISREG(info.st_mode)}
    freed = sum(files[name].st_blocks * 512 for name in REMOVED & set(files))
    for name in set(STREAMS.values()) & set(files):
        kept = files[name].st_size - _cut_at(files[name].st_size)
        freed += max(0, files[name].st_blocks * 512 - -(-kept // PAGE) * PAGE)
    return _answer(attempt, freed, found)


def _cut_at(size: int) -> int:
    """Where the end of a stream begins that is kept."""
    return max(0, (size - TAIL) // PAGE * PAGE)


def _cut(folder: int, job: str, stream: str) -> int:
    """Leaves the end of a stream, at its offset; the bytes that came free."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(STREAMS[stream], flags, dir_fd=folder)
    try:
        before = os.fstat(fd)
        end = _cut_at(before.st_size)
        if not end:
            return 0
        dropped = read_json(os.path.join(job, "dropped.json"))[0] or {}
        said = os.open("dropped.json", flags | os.O_CREAT, 0o600, dir_fd=folder)
        try:  # said before it is done, and in place, as while it ran
            os.pwrite(said, to_bytes(dict(dropped, **{stream: [0, end]})).ljust(512), 0)
        finally:
            os.close(said)
        punch_hole(fd, 0, end)
        return (before.st_blocks - os.fstat(fd).st_blocks) * 512
    finally:
        os.close(fd)


def _note(folder: int, line: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    fd = os.open("tombstone", flags, 0o600, dir_fd=folder)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)
