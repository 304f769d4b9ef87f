"""What is known of a host before a byte is fetched: its Python, C library, driver, mounts, room.

Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, List, Mapping, Tuple

from remote.payloads.records import Refused, emit
from remote.payloads.venv_pins import cuda_of, numbers

if TYPE_CHECKING:
    import argparse

SGLANG_GLIBC = (2, 34)
CANDIDATES = (sys.executable, "python3.12", "python3.11", "python3.13", "python3")
NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "glusterfs", "9p", "beegfs", "gpfs",
     "afs", "ncpfs", "virtiofs")
)  # fmt: skip
DRIVERS = {"12": 525, "13": 580}  # the oldest that run programs of this CUDA
GIB = 1 << 30


def interpreter(wanted: str, minimum: str) -> Tuple[str, str, str]:
    """(executable, version, C library) of the Python to build with; "auto" looks for one."""
    found: List[str] = []
    script = (
        "import json, os, platform, sys;"
        "print(json.dumps([sys.executable, platform.python_version(),"
        " os.confstr('CS_GNU_LIBC_VERSION') if 'CS_GNU_LIBC_VERSION' in os.confstr_names else '']))"
    )
    for name in CANDIDATES if wanted == "auto" else (wanted,):
        path = shutil.which(name)
        if path is None:
            continue
        probe = subprocess.run(
            [path, "-I", "-c", script], capture_output=True, text=True, check=False
        )
        if probe.returncode != 0:  # version managers put commands on PATH that then refuse
            continue
        executable, version, libc = json.loads(probe.stdout)
        found.append("%s is %s" % (name, version))
        if numbers(version)[:2] >= numbers(minimum)[:2]:
            return executable, version, libc or ""
    raise Refused(
        "Python %s or later is needed for %s; found: %s"
        % (minimum, "this environment" if wanted == "auto" else wanted, ", ".join(found) or "none"),
        "install it on the host (Debian, Ubuntu: python3.12 and python3.12-venv) or name another "
        "interpreter with --python",
    )


def driver_of(root: Path = Path("/")) -> str:
    """The version of the NVIDIA driver, by what the kernel says; empty where there is none."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"\b(\d{3,}\.\d+(\.\d+)?)\b", text)
    return found[1] if found else ""


def check_driver(args: argparse.Namespace, pins: Mapping[str, str], driver: str) -> None:
    """A GPU is of no use without a driver that is new enough: known before any download."""
    if not args.prove_cuda:
        return
    if not driver:
        raise Refused(
            "this host has no NVIDIA driver: torch would see no CUDA device",
            "take a machine with a GPU and its driver, or set `prove_cuda: false`",
        )
    cuda = cuda_of(pins)
    if numbers(driver)[0] < DRIVERS.get(cuda, 0):
        raise Refused(
            "the NVIDIA driver %s is too old for CUDA %s, which needs %d or later"
            % (driver, cuda, DRIVERS[cuda]),
            "take a newer image of the machine, or a lock with builds for an older CUDA",
        )


def mount_type(path: Path, mounts: str = "/proc/mounts") -> str:
    """The file system that holds path, by the mount table alone: a dead mount must not hang us."""
    best, kind = "", ""
    for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        point = fields[1].encode().decode("unicode_escape") if len(fields) > 2 else ""
        inside = point == "/" or str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def is_network(kind: str) -> bool:
    """FUSE counts as one: nearly all of them are, and none is fast at ten thousand small files."""
    return kind in NETWORK_TYPES or kind.startswith("fuse.") or kind == "fuse"


def nearest_folder(path: Path) -> Path:
    """The first parent that exists."""
    return next(p for p in (path, *path.parents) if p.is_dir())


def check_host(args: argparse.Namespace, pins: Mapping[str, str], libc: str) -> None:
    """Everything that can be known to fail, before a byte is fetched."""
    if "sglang" in pins and libc and numbers(libc)[:2] < SGLANG_GLIBC:
        raise Refused(
            "SGLang needs glibc 2.34 or later; this host has %s" % libc,
            "take a newer image (Ubuntu 22.04, Debian 12 or later)",
        )
    check_driver(args, pins, driver_of())
    kind = mount_type(Path(os.path.realpath(args.dest)))
    if is_network(kind) and not args.allow_network_mount:
        raise Refused(
            "%s is on a %s mount: imports from there take minutes and may hang" % (args.dest, kind),
            "choose a folder on a local disk, or allow it: --allow-network-mount (in a runbook "
            "`allow_network_mount: true`)",
        )
    if is_network(kind):
        emit("phase", "warning: %s is on a %s mount; imports will be slow" % (args.dest, kind))
    check_free(args, pins)


def check_free(args: argparse.Namespace, pins: Mapping[str, str]) -> None:
    """The disk must hold what is downloaded and what is unpacked."""
    needed = args.require_free
    if needed is None:
        needed = 4 * GIB if "torch" in pins else GIB // 2
    folder = nearest_folder(args.dest)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Refused(
            "%s has %.1f GiB free, %.1f GiB are needed (No space left on device would follow)"
            % (folder, free / GIB, needed / GIB),
            "free space there or choose another disk with --dest",
        )
