"""What a machine has."""

from __future__ import annotations

import os
import platform
import pwd
import re
import resource
import shutil
import socket
import sys
import time
from typing import TYPE_CHECKING

from remote.supervisor.base import wall_clock
from remote.supervisor.disks import mounts
from remote.supervisor.files import free_bytes
from remote.supervisor.gpus import cuda, gpus, topology
from remote.supervisor.identity import fact
from remote.supervisor.memory import memory, number_of, shared_memory

if TYPE_CHECKING:
    from remote.supervisor.base import JSON


def verb_facts(request: JSON, workspace: str) -> JSON:
    began = time.monotonic()
    root = os.path.expanduser(str(request.get("root") or "~"))
    found = {
        "system": platform.system(), "kernel": platform.release(), "machine": platform.machine(),
        "distribution": distribution(), "hostname": socket.gethostname(), "user": user_name(),
        "uid": os.getuid(), "home": os.path.expanduser("~"), "root": root,
        "cpu": cpu(), "memory": memory(), "shm": shared_memory(), "mounts": mounts(),
        "root_free_bytes": free_bytes(root),
        "gpus": gpus(), "gpu_topology": topology(), "cuda": cuda(),
        "python": {"version": platform.python_version(), "path": sys.executable},
        "glibc": ".".join(platform.libc_ver()[1:]), "container": container(),
        "limits": limits(), "public_ports": public_ports(), "tools": tools(),
        "unix_time": wall_clock(), "took_s": round(time.monotonic() - began, 3),
    }  # fmt: skip
    return {"facts": found}


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def distribution() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', fact("etc/os-release"), re.MULTILINE)
    return match.group(1) if match else ""


def cpu() -> JSON:
    model = re.search(r"^model name\s*:\s*(.*)$", fact("proc/cpuinfo"), re.MULTILINE)
    quota = None
    parts = fact("sys/fs/cgroup/cpu.max").split()
    if len(parts) == 2 and parts[0].isdigit():
        quota = int(parts[0]) / int(parts[1])
    else:
        limit = number_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = number_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
        quota = limit / period if limit and period else None
    return {
        "count": os.cpu_count(), "usable": len(os.sched_getaffinity(0)), "cgroup_cpus": quota,
        "model": model.group(1) if model else "", "load": os.getloadavg()[0],
    }  # fmt: skip


def container() -> str:
    """The kind of container we are in, "" for none that shows."""
    if os.path.exists("/run/.containerenv"):
        return "podman"
    if os.path.exists("/.dockerenv"):
        return "docker"
    match = re.search(r"docker|kubepods|lxc|libpod", fact("proc/1/cgroup"))
    return match.group(0) if match else ""


def limits() -> JSON:
    kinds = {
        "open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC,
        "locked_memory_bytes": resource.RLIMIT_MEMLOCK, "stack_bytes": resource.RLIMIT_STACK,
        "file_bytes": resource.RLIMIT_FSIZE,
    }  # fmt: skip
    return {
        name: [None if value == resource.RLIM_INFINITY else value for value in pair]
        for name, pair in ((name, resource.getrlimit(kind)) for name, kind in kinds.items())
    }


def listening_sockets() -> list[tuple[str, int]]:
    """(hexadecimal address, port) of every listening TCP socket."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in fact(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, _, port = fields[1].rpartition(":")
                found.append((address, int(port, 16)))
    return found


def public_ports() -> list[int]:
    """Ports that listen on more than loopback."""
    loopback = ("0100007F", "0" * 24 + "01000000")
    return sorted(
        {
            port for address, port in listening_sockets()
            if address not in loopback and not address.endswith("7F")
        }
    )  # fmt: skip


def tools() -> JSON:
    names = "bash git rsync curl uv gcc nvcc ssh tmux systemd-run nvidia-smi aws".split()  # noqa: SIM905
    return {name: shutil.which(name) for name in names}
