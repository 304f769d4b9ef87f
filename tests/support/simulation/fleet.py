"""The machines: their clock, their jobs, and what happens to them."""

from __future__ import annotations

import fcntl
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR = 3600.0


@dataclass(kw_only=True)
class Task:
    """How a task behaves there. Found by its id, or by the longest prefix of it."""

    hours: float = 0.1
    """Until it ends; a service has none and goes on."""
    service: bool = False
    out: dict[str, Any] = field(default_factory=dict)
    exits: list[int] = field(default_factory=list)
    """Exit codes of the first attempts; afterwards 0."""
    says: str = ""
    in_memory: str = ""
    """What its checks name that a boot takes away."""
    files: dict[str, str] = field(default_factory=dict)
    """Written below the work folder when it ends well."""


@dataclass(kw_only=True)
class Fault:
    """What happens to the machine of a task, once, when that task has run for so long."""

    task: str
    after_hours: float
    kind: str
    """reboot, cut (no answer for an hour), rebuilt, or kill (the job alone)."""
    done: bool = False


@dataclass(kw_only=True)
class Machine:
    """One rented box."""

    boot: int = 1
    identity: int = 1
    silent_until: float = 0.0


@dataclass(kw_only=True)
class Job:
    """One attempt on one boot of a machine."""

    task: str
    machine: str
    boot: int
    identity: int
    generation: int
    started: float
    ends: float | None
    code: int
    ended: float | None = None
    signal: int | None = None
    stopped: bool = False
    burned: bool = False


@dataclass(kw_only=True)
class State:
    """Everything, as one JSON document."""

    now: float = 0.0
    calls: int = 0
    machines: dict[str, Machine] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """What must never happen and did: two live attempts of a task."""

    def script(self, task: str) -> Task:
        """How a task behaves."""
        names = [name for name in self.tasks if task.startswith(name)]
        return self.tasks[max(names, key=len)] if names else Task()

    def lives(self, job: Job) -> bool:
        """Whether its process exists now."""
        machine = self.machines[job.machine]
        here = (job.boot, job.identity) == (machine.boot, machine.identity)
        return here and job.ended is None and not job.burned

    def pass_time(self, seconds: float) -> None:
        """Moves the clock, ends what ends, and lets faults happen."""
        self.now += seconds
        for job in self.jobs.values():
            if self.lives(job) and job.ends is not None and self.now >= job.ends:
                job.ended = job.ends
        for fault in self.faults:
            if not fault.done:
                self._strike(fault)

    def next_event(self) -> float | None:
        """When something happens by itself: a job ends, or a fault strikes."""
        live = [job for job in self.jobs.values() if self.lives(job)]
        ends = [job.ends for job in live if job.ends is not None]
        strikes = [
            job.started + fault.after_hours * HOUR
            for fault in self.faults
            if not fault.done
            for job in live
            if job.task.startswith(fault.task)
        ]
        return min((*ends, *strikes), default=None)

    def _strike(self, fault: Fault) -> None:
        for job in self.jobs.values():
            ripe = self.now >= job.started + fault.after_hours * HOUR
            if job.task.startswith(fault.task) and self.lives(job) and ripe:
                fault.done = True
                machine = self.machines[job.machine]
                if fault.kind == "reboot":
                    machine.boot += 1
                elif fault.kind == "rebuilt":
                    machine.identity += 1
                elif fault.kind == "cut":
                    machine.silent_until = self.now + HOUR
                elif fault.kind == "kill":
                    job.ended, job.code, job.signal = self.now, 0, 9
                else:
                    raise ValueError(fault.kind)
                return


class Fleet:
    """The file, and exclusive access to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, tasks: dict[str, Task], faults: list[Fault]) -> None:
        """A fleet on which nothing ran yet."""
        self.path.write_text(json.dumps(asdict(State(tasks=tasks, faults=faults))))

    @contextmanager
    def open(self) -> Iterator[State]:
        """The state, written back as one whole at the end."""
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = _read(json.loads(self.path.read_text()))
            yield state
            aside = self.path.with_suffix(".aside")
            aside.write_text(json.dumps(asdict(state)))
            aside.replace(self.path)

    def clock(self) -> float:
        """The machines' time; looking at it passes some, as waiting does."""
        with self.open() as state:
            silence = max((m.silent_until for m in state.machines.values()), default=0.0)
            state.pass_time(max(10.0, (silence - state.now) / 4))
            return state.now


def _read(rows: dict[str, Any]) -> State:
    return State(
        now=rows["now"],
        calls=rows["calls"],
        machines={name: Machine(**row) for name, row in rows["machines"].items()},
        jobs={name: Job(**row) for name, row in rows["jobs"].items()},
        tasks={name: Task(**row) for name, row in rows["tasks"].items()},
        faults=[Fault(**row) for row in rows["faults"]],
        wrong=rows["wrong"],
    )
