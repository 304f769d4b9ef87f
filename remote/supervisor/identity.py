"""Which machine this is, and which boot of it."""

from __future__ import annotations

import contextlib
import os

from remote.supervisor.base import INJECT, JSON


def fact(path: str) -> str:
    """The content of a small system file; a test's facts_root takes precedence."""
    for root in (INJECT.get("facts_root"), "/"):
        if root:
            where = os.path.join(str(root), path)
            with contextlib.suppress(OSError), open(where, "rb") as file:
                return file.read().decode("utf-8", "replace").strip()
    return ""


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (index 0 = field 3); [] when there is none."""
    text = fact("proc/1/stat") if pid == 1 else ""
    if not text:
        try:
            with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            return []
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def identity() -> JSON:
    return {
        "boot_id": fact("proc/sys/kernel/random/boot_id"),
        "machine_id": fact("etc/machine-id"),
        "pid1_start": str(start_ticks(1)),
        "hostname": os.uname().nodename,
    }


def lost_by(then: JSON, now: JSON) -> str:
    """How the machine changed since: "", "lost_reboot" or "lost_rebuilt"."""
    if then.get("machine_id") != now["machine_id"]:
        return "lost_rebuilt"
    if then.get("boot_id") != now["boot_id"] or then.get("pid1_start") != now["pid1_start"]:
        return "lost_reboot"
    return ""


def differences(then: JSON, now: JSON) -> list[str]:
    """What of the machine is not as it was, in words."""
    names = {"machine_id": "machine id", "boot_id": "boot id", "pid1_start": "start of PID 1"}
    return [
        f"{text} was {then[key]}, is {now[key]}"
        for key, text in names.items()
        if key in then and then[key] != now[key]
    ]
