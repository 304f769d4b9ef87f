"""Which file system a path lies on, read from the mount table without touching the mount."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from state.errors import NetworkFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable

MOUNT_TABLE = Path("/proc/mounts")

NETWORK = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "virtiofs", "afs"),
        *("ceph", "lustre", "gpfs", "glusterfs", "beegfs", "orangefs", "pvfs2", "ocfs2", "gfs2"),
        *("ncpfs", "coda", "davfs", "sshfs", "fuse", "fuseblk.sshfs", "vboxsf", "prl_fs"),
    }
)


LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})  # the root of a rootless container: a local disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of the mount table."""

    point: str
    kind: str


def read_mounts(table: Path = MOUNT_TABLE) -> tuple[Mount, ...]:
    """The mounts of this machine; none where there is no such table (macOS)."""
    try:
        text = table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 3:
            point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1])
            mounts.append(Mount(point=point, kind=fields[2]))
    return tuple(mounts)


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds this absolute path: the longest prefix, of equals the last one."""
    found: Mount | None = None
    for mount in mounts:
        inside = path.is_relative_to(mount.point)
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def refuse_network(path: Path, mounts: Iterable[Mount] | None = None) -> None:
    """Raise where SQLite's locks and write-ahead log cannot be trusted."""
    absolute = path.resolve()
    mount = mount_of(absolute, read_mounts() if mounts is None else mounts)
    if mount is None:
        return
    if mount.kind in NETWORK or (mount.kind.startswith("fuse.") and mount.kind not in LOCAL_FUSE):
        raise NetworkFileSystem(str(absolute), mount.point, mount.kind)
