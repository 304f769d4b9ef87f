"""The slow-mount radar: how fast a folder really is, measured where a mount may hang.

A mount that hangs keeps whoever touches it, also against kill -9. So it is touched by one child at
a time, machine-wide: while an earlier look has not come back, the mount is told as hung and nobody
touches it again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import time
from typing import TYPE_CHECKING

from remote.supervisor.base import INJECT
from remote.supervisor.children import in_child
from remote.supervisor.disks import IN_MEMORY, PSEUDO_TYPES, mount_of, mount_table, room
from remote.supervisor.resources import machine_folder, open_shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from remote.supervisor.base import JSON

LOOK_S = 8.0
SLOW_OPEN_MS = 5.0  # importing torch opens some 4,000 files: 20 s of nothing but opening
SLOW_READ = 100e6  # bytes a second: a model of 55 GB takes nine minutes
SLOW_IMPORT_S = 10.0
SAMPLE = 64  # files
SMALL = 64 << 10
STRETCH = 64 << 20
READ_S = 0.3
IMPORTS = "import importlib.metadata as m; [d.metadata['Name'] for d in m.distributions()]"


def verb_radar(request: JSON, workspace: str) -> JSON:
    return {"radar": rows([str(path) for path in request["paths"]])}


def rows(paths: list[str]) -> list[JSON]:
    seen: dict[str, JSON] = {}
    for path in paths:
        whole = os.path.abspath(os.path.expanduser(path))
        if whole not in seen:
            seen[whole] = look(whole)
    return list(seen.values())


def look(path: str) -> JSON:
    """One row: what was measured, the verdict, and where else to go."""
    mount = mount_of(path)
    row: JSON = {"path": path, "type": mount["type"], "network": mount["network"]}
    with _turn(mount["path"]) as waiting_s:
        if waiting_s is not None:
            why = f"a look at {mount['path']} has not come back for {waiting_s:.0f} s"
            return _judged(dict(row, verdict="hung", why=why))
        kill = not INJECT.get("radar_cannot_be_killed")
        answered, found = in_child(lambda: _measure(path), _limit_s(), kill=kill)
    if not answered:
        return _judged(dict(row, verdict="hung", why=f"{mount['path']} gave {found}"))
    row.update(found)
    return _judged(row)


def _limit_s() -> float:
    return float(INJECT.get("radar_limit_s", LOOK_S))


@contextlib.contextmanager
def _turn(mount: str) -> Iterator[float | None]:
    """Seconds since the look that still holds the turn began, or None: it is ours.

    The child inherits the lock, and keeps it for as long as it hangs.
    """
    name = "radar-" + hashlib.sha256(mount.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    fd = open_shared(os.path.join(machine_folder(), name))
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            began = os.pread(fd, 32, 0).strip()
            yield max(0.0, time.monotonic() - float(began or 0))
        else:
            os.pwrite(fd, b"%-31.3f\n" % time.monotonic(), 0)
            yield None
    finally:
        os.close(fd)


# --- in the child ---


def _measure(path: str) -> JSON:
    if INJECT.get("radar_hang") and path == INJECT.get("radar_hang_at", path):
        os.close(os.open(str(INJECT["radar_hang"]), os.O_RDONLY))  # a FIFO: comes back when fed
    if not os.path.isdir(path):
        return {"absent": True}
    small, large = _sample(path)
    found: JSON = {}
    if small:
        spent = sorted(_open_ms(name) for name in small)
        found["open_ms"] = round(spent[len(spent) // 2], 3)
        found["open_worst_ms"] = round(spent[-1], 3)
        found["opened"] = len(spent)
    if large:
        found["read_bytes_s"] = _read_rate(large)
    python = os.path.join(path, "bin", "python")
    if os.path.exists(python):
        began = time.monotonic()
        subprocess.run(
            [python, "-I", "-c", IMPORTS], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, check=False, cwd="/",
        )  # fmt: skip
        found["import_s"] = round(time.monotonic() - began, 3)
    return found


def _sample(path: str) -> tuple[list[str], str]:
    """Some small files below a folder, and a large one; never the whole of a tree."""
    small: list[str] = []
    large, most = "", 8 << 20
    todo, asked = [path], 0
    while todo and asked < 400 and len(small) < SAMPLE:
        with contextlib.suppress(OSError), os.scandir(todo.pop(0)) as entries:
            for entry in entries:
                asked += 1
                if asked > 400:
                    break
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        todo.append(entry.path)
                    elif stat.S_ISREG(info.st_mode) and os.access(entry.path, os.R_OK):
                        if info.st_size <= SMALL:
                            small.append(entry.path)
                        elif info.st_size > most:
                            large, most = entry.path, info.st_size
    return small[:SAMPLE], large


def _open_ms(path: str) -> float:
    began = time.monotonic()
    with contextlib.suppress(OSError), open(path, "rb") as file:
        time.sleep(float(INJECT.get("radar_slow_s", 0)))
        file.read(4096)
    return (time.monotonic() - began) * 1000


def _read_rate(path: str) -> int:
    done = 0
    with open(path, "rb", buffering=0) as file:
        # Not from our own memory of it. What a server remembers cannot be helped.
        os.posix_fadvise(file.fileno(), 0, STRETCH, os.POSIX_FADV_DONTNEED)
        began = time.monotonic()
        while done < STRETCH and time.monotonic() - began < READ_S:
            piece = file.read(1 << 20)
            if not piece:
                break
            done += len(piece)
    return int(done / max(time.monotonic() - began, 1e-6))


# --- what it means ---


def _judged(row: JSON) -> JSON:
    reasons = [row["why"]] if row.get("why") else []
    if row.get("open_ms", 0) > SLOW_OPEN_MS:
        reasons.append(f"a small file takes {row['open_ms']:.1f} ms to open")
    if row.get("read_bytes_s", SLOW_READ) < SLOW_READ:
        reasons.append(f"it reads {row['read_bytes_s'] / 1e6:.0f} MB/s")
    if row.get("import_s", 0) > SLOW_IMPORT_S:
        reasons.append(f"its Python takes {row['import_s']:.0f} s to find its packages")
    measured = any(key in row for key in ("open_ms", "read_bytes_s", "import_s"))
    row.setdefault("verdict", "slow" if reasons else "ok" if measured else "unknown")
    row["why"] = "; ".join(reasons) or ("" if measured else "nothing there to measure")
    if row["verdict"] in ("slow", "hung"):
        row["alternative"] = alternative(row["path"])
    return row


def alternative(path: str) -> JSON | None:
    """The local disk that has the most room, and a folder there that we may write to."""
    best: JSON | None = None
    here = mount_of(path)["path"]
    for mount in mount_table():
        known = mount["network"] or mount["read_only"] or mount["type"] in PSEUDO_TYPES
        if known or mount["path"] == here or mount["path"].startswith(("/proc", "/sys", "/run")):
            continue
        folder = _writable(mount["path"])
        free = room(folder) if folder else None
        if folder and free and (best is None or free > best["free_bytes"]):
            memory = mount["type"] in IN_MEMORY
            best = {"path": folder, "free_bytes": free, "in_memory": memory}
    return best


def _writable(mount: str) -> str:
    """A folder on this very mount where we may make files."""
    homes = [mount, os.path.expanduser("~"), "/var/tmp", "/tmp"]  # noqa: S108
    for folder in homes if mount == "/" else [mount]:
        if folder != "/" and mount_of(folder)["path"] == mount and os.access(folder, os.W_OK):
            return folder
    return ""
