"""What a job holds besides its processes: memory of GPUs, files in shared memory, ports.

Processes end at a signal; what they held is looked at afterwards, for it decides whether the next
job can start.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from typing import TYPE_CHECKING, Any

from remote.supervisor import shm
from remote.supervisor.base import INJECT
from remote.supervisor.files import publish, read_json, to_bytes
from remote.supervisor.gpus import gpu_users, program
from remote.supervisor.ports import listening, port_holders
from remote.supervisor.processes import describe, process_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from remote.supervisor.base import JSON

GPU_WAIT_S = 15.0  # a driver takes its time to take memory back
PORT_WAIT_S = 2.0


class Holdings:
    """Kept beside the job, so that whoever ends it knows them when its supervisor is dead."""

    def __init__(self, job: str, spec: JSON, known: JSON) -> None:
        self.path = os.path.join(job, "holdings.json")
        self.patterns = [str(pattern) for pattern in spec.get("shm") or []]
        names = [str(name) for name in spec.get("resources") or []]
        self.gpus = {name[4:] for name in names if name.startswith("gpu:")}
        self.shm_before: shm.Files = dict(known.get("shm_before") or {})
        self.shm: shm.Files = dict(known.get("shm") or {})
        self.gpu_before: set[int] = set(known.get("gpu_before") or [])
        self.pids: set[int] = set(known.get("pids") or [])

    @classmethod
    def begin(cls, job: str, spec: JSON) -> Holdings:
        """Before the payload starts: what is there now is not the job's."""
        new = cls(job, spec, {"shm_before": shm.files()})
        if new.gpus:
            new.gpu_before = {user["pid"] for user in gpu_users(limit_s=8)}
        new.save()
        return new

    @classmethod
    def of(cls, job: str, spec: JSON) -> Holdings:
        known, _ = read_json(os.path.join(job, "holdings.json"))
        # Without the record nothing is known to be ours, whatever it looks like.
        return cls(job, spec, known or {"shm_before": shm.files()})

    def save(self) -> None:
        record = {
            "shm_before": self.shm_before, "shm": self.shm,
            "gpu_before": sorted(self.gpu_before), "pids": sorted(self.pids)[-5000:],
        }  # fmt: skip
        with contextlib.suppress(OSError):  # on a full disk the sweep knows less
            publish(self.path, to_bytes(record))

    def look(self, pids: Iterable[int]) -> None:
        """Note what these processes of the job hold now."""
        known = (len(self.pids), dict(self.shm))
        pids = list(pids)
        self.pids.update(pids)
        self._add(shm.opened(pids))
        if self.patterns:
            named = {name: inode for name, inode in shm.files().items() if self._is_named(name)}
            # A pattern says too much: what another job has open is not this one's.
            theirs = shm.opened(pid for pid in process_ids() if pid not in self.pids)
            self._add({name: inode for name, inode in named.items() if name not in theirs})
        if known != (len(self.pids), self.shm):
            self.save()

    def _add(self, found: shm.Files) -> None:
        new = {name: ino for name, ino in found.items() if self.shm_before.get(name) != ino}
        self.shm.update(new)

    def _is_named(self, name: str) -> bool:
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns):
            return False
        with contextlib.suppress(OSError):
            return os.lstat(os.path.join(shm.folder(), name)).st_uid == os.getuid()
        return False

    # --- after the processes ended ---

    def sweep(self) -> tuple[list[str], list[JSON]]:
        """Removes its shared memory; the names that went, and who keeps what stayed."""
        self.look([])
        gone, stayed = shm.remove(self.shm)
        left: list[JSON] = []
        for name in stayed:
            path = os.path.join(shm.folder(), name)
            with contextlib.suppress(OSError):
                held = {"file": path, "bytes": os.lstat(path).st_size}
                left.append({"pid": None, "command": "", "holds": [held]})
        return gone, left

    def gpu_memory(self) -> list[JSON]:
        """Memory on GPUs that is the job's, or that nobody else can be using on GPUs it owned."""
        found: list[JSON] = []
        for user in gpu_users(limit_s=8):
            pid = user["pid"]
            ours = pid in self.pids
            owned = str(user["gpu"]) in self.gpus and pid not in self.gpu_before
            if ours or (owned and not os.path.exists("/proc/%d" % pid)):
                row = describe(pid) if ours else {"pid": pid, "command": user["command"]}
                held = {"gpu": user["gpu"], "bytes": user["bytes"]}
                found.append(dict(row, ours=ours, holds=[held]))
        return found

    def wait_for_gpus(self, tick: Callable[[], Any]) -> list[JSON]:
        """What is left of its GPU memory when the driver had time to take it back."""
        if program() is None:
            return []
        left: list[JSON] = []

        def is_free() -> bool:
            left[:] = self.gpu_memory()
            return not left

        wait_ticking(is_free, float(INJECT.get("gpu_wait_s", GPU_WAIT_S)), tick)
        return left


def wait_ticking(true: Callable[[], bool], limit_s: float, tick: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + limit_s
    while not true():
        tick()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait_for_ports(ports: list[int]) -> list[JSON]:
    """Who still listens on the job's ports after a moment."""
    if not ports:
        return []
    wait_ticking(lambda: not listening(ports), PORT_WAIT_S, lambda: None)
    return port_holders(ports)


def merged(rows: Iterable[JSON]) -> list[JSON]:
    """One row per process, with all that it holds; rows without a process stay by themselves."""
    by_pid: dict[int, JSON] = {}
    found: list[JSON] = []
    for row in rows:
        pid = row.get("pid")
        known = by_pid.get(pid) if pid is not None else None
        if known is None:
            known = dict(row, holds=list(row.get("holds") or []))
            found.append(known)
            if pid is not None:
                by_pid[pid] = known
        else:
            known["holds"] += row.get("holds") or []
            known["ours"] = bool(known.get("ours")) or bool(row.get("ours"))
    return found
