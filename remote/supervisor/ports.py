"""TCP ports that are listened on, and by whom."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from remote.supervisor.processes import describe, process_ids

if TYPE_CHECKING:
    from remote.supervisor.base import JSON


def listening(ports: list[int]) -> dict[int, set[str]]:
    """The socket inodes that listen on these ports."""
    found: dict[int, set[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == "0A" and port in ports:
                    found.setdefault(port, set()).add(fields[9])
    return found


def port_holders(ports: list[int]) -> list[JSON]:
    """Who still listens on these ports, as far as we may see."""
    wanted = listening(ports)
    if not wanted:
        return []
    owner: dict[str, int] = {}
    for pid in process_ids():
        with contextlib.suppress(OSError):
            for name in os.listdir("/proc/%d/fd" % pid):
                with contextlib.suppress(OSError):
                    link = os.readlink("/proc/%d/fd/%s" % (pid, name))
                    if link.startswith("socket:["):
                        owner.setdefault(link[8:-1], pid)
    found: list[JSON] = []
    for port, inodes in sorted(wanted.items()):
        pids = sorted({owner[inode] for inode in inodes if inode in owner})
        held = [{"port": port}]
        found.extend(dict(describe(pid), holds=held) for pid in pids)
        if not pids:
            found.append({"pid": None, "command": "? (not visible to us)", "holds": held})
    return found
