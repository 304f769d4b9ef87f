"""What a machine has."""

from __future__ import annotations

import contextlib
import os
import platform
import pwd
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from remote.supervisor.children import in_child
from remote.supervisor.disks import mounts
from remote.supervisor.files import free_bytes
from remote.supervisor.gpus import cuda, gpus, topology
from remote.supervisor.identity import fact
from remote.supervisor.memory import memory, number_of, shared_memory
from remote.supervisor.processes import sees
from remote.supervisor.radar import rows

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
        "disks": disks(), "radar": rows([root, "~", *(request.get("look_at") or [])]),
        "python": {"version": platform.python_version(), "path": sys.executable},
        "pythons": pythons(), "sees": sees(),
        "glibc": ".".join(platform.libc_ver()[1:]), "container": container(),
        "limits": limits(), "public_ports": public_ports(), "tools": tools(),
        "unix_time": time.time(), "took_s": round(time.monotonic() - began, 3),
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


def disks() -> list[JSON]:
    """Block devices with a disk behind them."""
    found: list[JSON] = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir("/sys/block")):
            sectors = number_of(f"/sys/block/{name}/size")
            if sectors and not name.startswith(("loop", "ram", "zram", "sr")):
                spins = fact(f"/sys/block/{name}/queue/rotational") == "1"
                model = fact(f"/sys/block/{name}/device/model")
                found.append(
                    {"name": name, "bytes": sectors * 512, "rotational": spins, "model": model}
                )
    return found


def pythons() -> list[JSON]:
    """The Pythons that a login would find, and ours. Version managers' scripts are not run."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/bin:/opt/conda/bin"
    names = ["python3", *("python3.%d" % minor for minor in range(8, 16))]
    found = {os.path.realpath(sys.executable): platform.python_version()}

    def ask() -> dict[str, str]:
        for name in names:
            place = os.path.realpath(shutil.which(name, path=path) or "/")
            if place not in found and is_program(place):
                found[place] = version_of(place)
        return found

    answered, value = in_child(ask, 10.0)
    pairs = sorted((value if answered else found).items())
    return [{"path": place, "version": version} for place, version in pairs]


def is_program(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
    return False


def version_of(python: str) -> str:
    code = "import sys; print(*sys.version_info[:3], sep='.')"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [python, "-I", "-S", "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, timeout=3, check=True,
        )  # fmt: skip
        return done.stdout.decode("utf-8", "replace").strip()
    return ""


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
