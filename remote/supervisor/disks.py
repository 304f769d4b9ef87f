"""File systems: which one a path is on, whether it is far away, and how much room it has."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from remote.supervisor.children import in_child
from remote.supervisor.files import disk, free_bytes
from remote.supervisor.identity import fact
from remote.supervisor.memory import available_memory

if TYPE_CHECKING:
    from remote.supervisor.base import JSON

NETWORK_TYPES = re.compile(r"nfs|cifs|smb|fuse|9p|ceph|lustre|gpfs|beegfs|glusterfs|afs")
# fuse covers what rented machines mount buckets and volumes with; overlay is a local disk.
IN_MEMORY = ("tmpfs", "ramfs")

PSEUDO_TYPES = frozenset(
    ["proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "securityfs", "debugfs", "tracefs",
     "configfs", "fusectl", "pstore", "bpf", "binfmt_misc", "autofs", "hugetlbfs", "nsfs",
     "rpc_pipefs", "efivarfs", "devtmpfs", "selinuxfs"]
)  # fmt: skip


def mount_table() -> list[JSON]:
    """Every mount, from the kernel's table: read without touching any of them."""
    found: list[JSON] = []
    for line in fact("proc/self/mountinfo").splitlines():
        fields = line.split()
        dash = fields.index("-")
        path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), fields[4])
        kind = fields[dash + 1]
        found.append(
            {
                "path": path, "type": kind, "network": bool(NETWORK_TYPES.search(kind)),
                "read_only": "ro" in fields[5].split(","),
            }
        )  # fmt: skip
    return found


def mounts() -> list[JSON]:
    """The mounts that hold files; each that may be far away is asked with a deadline."""
    found: list[JSON] = []
    for one in mount_table():
        path = one["path"]
        if one["type"] in PSEUDO_TYPES or path.startswith(("/proc", "/sys")):
            continue
        # A local disk answers at once; only others are worth a child each.
        if one["network"]:
            answered, value = in_child(lambda path=path: disk(path), 3.0)  # type: ignore[misc]
            one.update(value if answered else {"hung": True})
        else:
            one.update(disk(path))
        found.append(one)
    return found[:200]


def mount_of(path: str) -> JSON:
    """The mount that holds an absolute path, by its name alone: links are not followed."""
    best: JSON = {"path": "/", "type": "", "network": False, "read_only": False}
    for one in mount_table():
        point = one["path"]
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and len(point) >= len(best["path"]):
            best = one  # of two mounts at one place, the later one is seen
    return best


def room(path: str) -> int | None:
    """What can be written at `path`; of a file system in memory, no more than there is memory."""
    free = free_bytes(path)
    if free is not None and mount_of(os.path.realpath(path))["type"] in IN_MEMORY:
        return min(free, available_memory())
    return free
