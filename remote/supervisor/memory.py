"""Memory: how much there is, and whether the kernel killed for it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from remote.supervisor.identity import fact

if TYPE_CHECKING:
    from remote.supervisor.base import JSON


def oom_counters() -> JSON:
    """How often the kernel has killed for memory, as far as this process can see."""
    found: JSON = {}
    for line in fact("proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            names = [f"sys/fs/cgroup{path}/memory.events", "sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            names = [f"sys/fs/cgroup/memory{path}/memory.oom_control",
                     "sys/fs/cgroup/memory/memory.oom_control"]  # fmt: skip
        else:
            continue
        for name in names:
            match = re.search(r"^oom_kill (\d+)$", fact(name), re.MULTILINE)
            if match:
                found["cgroup"] = int(match.group(1))
                break
    match = re.search(r"^oom_kill (\d+)$", fact("proc/vmstat"), re.MULTILINE)
    if match:
        found["machine"] = int(match.group(1))
    match = re.search(r"^MemAvailable:\s+(\d+) kB", fact("proc/meminfo"), re.MULTILINE)
    if match:
        found["mem_available_bytes"] = int(match.group(1)) * 1024
    return found


def oom_evidence(before: JSON, after: JSON) -> JSON:
    grown = [
        name for name in ("cgroup", "machine")
        if name in before and name in after and after[name] > before[name]
    ]  # fmt: skip
    return {"counters_grown": grown, "before": before, "after": after}


SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, never written


def number_of(path: str) -> int | None:
    text = fact(path)
    return int(text) if text.isdigit() else None


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


def available_memory() -> int:
    """What may still be taken: the machine's, or less under the limit of our group."""
    found = memory()
    available = int(found["available_bytes"])
    if found["cgroup_limit_bytes"] is not None and found["cgroup_used_bytes"] is not None:
        available = min(available, found["cgroup_limit_bytes"] - found["cgroup_used_bytes"])
    return max(0, available)


def shared_memory() -> JSON:
    """Its size is a promise; the memory behind it is what can be had."""
    try:
        info = os.statvfs(SHARED_MEMORY)
    except OSError:
        return {"size_bytes": 0, "free_bytes": 0, "memory_behind_bytes": 0}
    return {
        "size_bytes": info.f_blocks * info.f_frsize, "free_bytes": info.f_bavail * info.f_frsize,
        "memory_behind_bytes": available_memory(),
    }  # fmt: skip
