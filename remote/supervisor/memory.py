"""Whether the kernel killed for memory."""

from __future__ import annotations

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
