"""How a payload ended: the failure class, and the evidence for it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from remote.supervisor.files import free_bytes
from remote.supervisor.logs import log_tail
from remote.supervisor.memory import oom_counters, oom_evidence

if TYPE_CHECKING:
    from remote.supervisor.base import JSON

FULL = b"No space left on device"


def split_status(wait_status: int) -> tuple[int | None, int | None]:
    """Exit code and signal; one of them is None."""
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None


def classify(
    job: str, code: int | None, number: int | None, oom_before: JSON, evidence: JSON
) -> tuple[str, str]:
    """Class and reason of an end that nobody asked for; adds to the evidence."""
    if code == 0:
        return "ok", ""
    oom = oom_evidence(oom_before, oom_counters())
    # Our own group's counter is proof. The machine's may count a neighbour, so it needs a kill.
    grown, killed = oom["counters_grown"], number == signal.SIGKILL or code == 137
    if "cgroup" in grown or ("machine" in grown and killed):
        evidence["oom"] = oom
        return "oom", "the kernel killed a process for memory while it ran"
    tail = log_tail(os.path.join(job, "err.log")) + log_tail(os.path.join(job, "out.log"))
    free = free_bytes(job)
    if number == signal.SIGBUS or FULL in tail or free == 0:
        evidence["disk"] = {
            "free_at_job_dir": free, "sigbus": number == signal.SIGBUS,
            "message_in_log": FULL in tail,
        }  # fmt: skip
        return "disk_full", "it ended while a file system had no space left"
    if number is not None:
        if number == signal.SIGKILL:
            oom["note"] = "SIGKILL from outside; no counter proves that memory was the cause"
            evidence["oom_suspected"] = oom
        return "signal", "signal %d ended it" % number
    return "exit", f"it exited with {code}"
