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
from typing import TYPE_CHECKING

from remote.supervisor.base import wall_clock
from remote.supervisor.children import in_child
from remote.supervisor.files import disk, free_bytes
from remote.supervisor.gpus import cuda, gpus, topology
from remote.supervisor.identity import fact

if TYPE_CHECKING:
    from remote.supervisor.base import JSON

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, never written

NETWORK_TYPES = re.compile(r"nfs|cifs|smb|fuse|9p|ceph|lustre|gpfs|beegfs|glusterfs|afs|virtiofs")

PSEUDO_TYPES = frozenset(
    ["proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "securityfs", "debugfs", "tracefs",
     "configfs", "fusectl", "pstore", "bpf", "binfmt_misc", "autofs", "hugetlbfs", "nsfs",
     "rpc_pipefs", "efivarfs", "devtmpfs", "selinuxfs"]
)  # fmt: skip


def number_of(path: str) -> int | None:
    text = fact(path)
    return int(text) if text.isdigit() else None


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


def cgroup_memory() -> tuple[int | None, int | None]:
    """Limit and use of our memory group; None where there is none."""
    places = [("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")]
    for line in fact("proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base = "/sys/fs/cgroup" + path.rstrip("/")
            places.insert(0, (base + "/memory.max", base + "/memory.current"))
        elif "memory" in controllers.split(","):
            places.extend(
                (base + "/memory.limit_in_bytes", base + "/memory.usage_in_bytes")
                for base in ("/sys/fs/cgroup/memory" + path, "/sys/fs/cgroup/memory")
            )
    for limit, used in places:
        value = number_of(limit)
        if value is not None and value < 1 << 60:
            return value, number_of(used)
    return None, None


def memory() -> JSON:
    lines = dict(re.findall(r"^(\w+):\s+(\d+)", fact("proc/meminfo"), re.MULTILINE))
    limit, used = cgroup_memory()
    return {
        "total_bytes": int(lines.get("MemTotal", 0)) * 1024,
        "available_bytes": int(lines.get("MemAvailable", 0)) * 1024,
        "swap_bytes": int(lines.get("SwapTotal", 0)) * 1024,
        "cgroup_limit_bytes": limit, "cgroup_used_bytes": used,
    }  # fmt: skip


def shared_memory() -> JSON:
    """Its size is a promise; the memory behind it is what can be had."""
    try:
        info = os.statvfs(SHARED_MEMORY)
    except OSError:
        return {"size_bytes": 0, "free_bytes": 0, "memory_behind_bytes": 0}
    behind = memory()
    available = behind["available_bytes"]
    if behind["cgroup_limit_bytes"] is not None and behind["cgroup_used_bytes"] is not None:
        left = behind["cgroup_limit_bytes"] - behind["cgroup_used_bytes"]
        available = max(0, min(available, left))
    return {
        "size_bytes": info.f_blocks * info.f_frsize, "free_bytes": info.f_bavail * info.f_frsize,
        "memory_behind_bytes": available,
    }  # fmt: skip


def mounts() -> list[JSON]:
    """The mount table is read without touching the mounts; each is then asked with a deadline."""
    found: list[JSON] = []
    for line in fact("proc/self/mountinfo").splitlines():
        fields = line.split()
        dash = fields.index("-")
        kind, path = fields[dash + 1], fields[4].encode().decode("unicode_escape")
        if kind in PSEUDO_TYPES or path.startswith(("/proc", "/sys")):
            continue
        one: JSON = {
            "path": path, "type": kind, "network": bool(NETWORK_TYPES.search(kind)),
            "read_only": "ro" in fields[5].split(","),
        }  # fmt: skip
        # A local disk answers at once; only others are worth a child each.
        if one["network"]:
            answered, value = in_child(lambda path=path: disk(path), 3.0)  # type: ignore[misc]
            one.update(value if answered else {"hung": True})
        else:
            one.update(disk(path))
        found.append(one)
    return found[:200]


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
