"""Where a copy of a model goes: into memory if it fits there, else to a disk.

Standard library only, Python 3.8 or later. A file system in memory has room that the machine may
not have, and the machine memory that a container's limit does not give: all three are asked.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence

from remote.payloads.model_blocks import GIB, size_of
from remote.payloads.records import PARTIAL

if TYPE_CHECKING:
    import argparse

    from remote.payloads.model_sources import Source

MEMORY_TYPES = ("tmpfs", "ramfs")


class Place(NamedTuple):
    """Where the copy goes, and why there."""

    path: Path
    where: str
    reason: str


def nearest_folder(path: Path) -> Path:
    """The first parent that exists."""
    return next(p for p in (path, *path.parents) if p.is_dir())


def mount_type(path: Path, mounts: Path) -> str:
    """The file system that holds path, by the mount table alone."""
    best, kind = "", ""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = point == "/" or str(path) == point or str(path).startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def free_memory(root: Path) -> int:
    """What this process may still take: the machine's, or less under a container's limit."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    frees = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    frees += [free for free in map(group_free, memory_groups(root)) if free is not None]
    return min(frees) if frees else 0


def memory_groups(root: Path) -> List[Path]:
    """The folders of this process's memory control group and of all groups above it."""
    top = root / "sys/fs/cgroup"
    found: List[Path] = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = top if not controllers else top / "memory"
        if controllers and "memory" not in controllers.split(","):
            continue
        group = base / path.lstrip("/")
        found += [p for p in (group, *group.parents) if p == base or base in p.parents]
    return [*found, top, top / "memory"]


def group_free(group: Path) -> Optional[int]:
    """Bytes left in one control group (version 2 or 1); None when it sets no limit."""
    for limit_name, used_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (group / limit_name).read_text(encoding="ascii").strip()
            if limit == "max" or int(limit) > 1 << 60:
                return None
            free = int(limit) - int((group / used_name).read_text(encoding="ascii"))
            for line in (group / "memory.stat").read_text(encoding="ascii").splitlines():
                if line.split()[:1] == [cache]:  # page cache that the kernel gives back
                    free += int(line.split()[1])
            return max(free, 0)
        except (OSError, ValueError):
            continue
    return None


def missing_bytes(dest: Path, files: Sequence[Source]) -> int:
    """What a copy to dest would allocate, given what an unfinished one left there."""
    need = 0
    for file in files:
        left = [size_of(dest / file.path), size_of(dest / (file.path + PARTIAL))]
        need += max(0, file.size - sum(size for size in left if size > 0))
    return need


def choose(args: argparse.Namespace, files: Sequence[Source], root: Path) -> Place:
    """Memory if the file system there, the machine and the container all have room."""
    need = missing_bytes(args.shm, files) + args.headroom
    folder = nearest_folder(args.shm)
    kind = mount_type(Path(os.path.realpath(folder)), root / "proc/mounts")
    if args.no_shm:
        return Place(args.disk, "disk", "memory was not asked for")
    if kind not in MEMORY_TYPES:
        return Place(args.disk, "disk", "%s is on %s, not in memory" % (folder, kind or "a disk"))
    for free, what in (
        (shutil.disk_usage(folder).free, str(folder)),
        (free_memory(root), "memory"),
    ):
        if free < need:
            reason = "%s has %.1f GiB free, %.1f GiB are needed with headroom"
            return Place(args.disk, "disk", reason % (what, free / GIB, need / GIB))
    return Place(args.shm, "shm", "fits in memory with %.1f GiB headroom" % (args.headroom / GIB))
