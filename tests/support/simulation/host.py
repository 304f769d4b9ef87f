"""`remote.Host` as the engine knows it, on a machine of the fleet."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from remote import HostFenceHeld, Unreachable
from remote.model import CheckResult, Identity, JobStatus, LogChunk, StopReport
from remote.supervisor.checks import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from remote.model import JobSpec, Stream
    from tests.support.simulation.fleet import Fleet, Job, State

POLL_S = 60.0
"""Machine time between two polls at least; more where nothing happens for longer."""
BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
FACTS = {
    "hostname": socket.gethostname(),  # bound as `local`: it must be this machine
    "distribution": "Simulated 12",
    "glibc": "2.36",
    "cpu": {"usable": 64},
    "memory": {"total_bytes": 1 << 40, "cgroup_limit_bytes": None},
    "gpus": [{"index": i, "name": "simulated", "memory_bytes": 192 << 30} for i in range(8)],
    "shm": {"free_bytes": 512 << 30},
}


class SimulatedHost:
    """One client's view of one machine. Holds nothing: it looks into the fleet's file."""

    def __init__(self, fleet: Fleet, *, address: str, root: str, work: str, kill: Kill) -> None:
        self.fleet, self.address, self.root, self.work, self.kill = fleet, address, root, work, kill
        self.label = address
        self.transport = SimpleNamespace(close=lambda: None, host_key="", label=address)
        self.last_identity: Identity | None = None

    def identity(self) -> Identity:
        return self._call(lambda state: self._identity(state))

    def facts(self, **_: Any) -> dict[str, Any]:
        return self._call(lambda _: dict(FACTS))

    def ship(self, files: Mapping[str, bytes], *, name: str) -> str:
        assert files
        return self._call(lambda _: f"{self.root}/shipped/{name}")

    def launch(self, spec: JobSpec) -> JobStatus:
        return self._call(lambda state: self._launch(state, spec))

    def poll(self, attempts: Iterable[str]) -> dict[str, JobStatus]:
        names = list(attempts)

        def look(state: State) -> dict[str, JobStatus]:
            following = state.next_event()
            state.pass_time(max(POLL_S, (following or 0.0) - state.now))
            return {name: self._status(state, name) for name in names}

        return self._call(look)

    def check(
        self,
        checks: Sequence[Mapping[str, Any]],
        *,
        attempt: str | None = None,
        timeout: float = 60,
    ) -> list[CheckResult]:
        del timeout

        def probe(state: State) -> list[CheckResult]:
            job = state.jobs.get(attempt or "")
            alive = job is None or state.lives(job)
            return [self._verdict(state, check, alive=alive) for check in checks]

        return self._call(probe)

    def stop(
        self, attempt: str, *, grace_s: float, ports: Sequence[int] = (), **_: Any
    ) -> StopReport:
        del grace_s, ports

        def end(state: State) -> StopReport:
            job = state.jobs.get(attempt)
            if job is not None and state.lives(job):
                job.ended, job.stopped = state.now, True
            return StopReport(state="stopped")

        return self._call(end)

    def burn(self, attempt: str) -> bool:
        def mark(state: State) -> bool:
            if attempt in state.jobs:
                return False
            state.jobs[attempt] = self._new(state, "", 0, burned=True)
            return True

        return self._call(mark)

    def read_log(
        self, attempt: str, stream: Stream, *, offset: int, limit: int = 0, file_id: str = ""
    ) -> LogChunk:
        del limit, file_id
        data = self._call(lambda state: self._log(state, attempt, stream))
        return LogChunk(
            data=data[offset:], offset=offset, size=len(data), file_id="1", restarted=False
        )

    def read_out(self, attempt: str) -> dict[str, Any] | None:
        def out(state: State) -> dict[str, Any] | None:
            job = state.jobs[attempt]
            return dict(state.script(job.task).out) if job.code == 0 else None

        return self._call(out)

    def set_draining(self, address: str, *, on: bool) -> list[str]:
        del on
        return self._call(lambda _: [address])

    def read_file(self, path: str, limit: int) -> bytes:
        return self._call(lambda _: Path(path).read_bytes()[:limit])

    def close(self) -> None:
        pass

    # Inside.

    def _call(self, act: Callable[[State], Any]) -> Any:
        self.kill.maybe()  # the request was never sent
        with self.fleet.open() as state:
            machine = state.machines.setdefault(self.address, _machine())
            state.calls += 1
            state.pass_time(1.0)
            if state.now < machine.silent_until:
                raise Unreachable(f"{self.address} does not answer")
            answer = act(state)
            self.last_identity = self._identity(state)
            ended = any(j.task.startswith(self.kill.after) and j.ended for j in state.jobs.values())
        self.kill.maybe(now=bool(self.kill.after) and ended)  # done, and the answer is lost
        return answer

    def _verdict(self, state: State, check: Mapping[str, Any], *, alive: bool) -> CheckResult:
        ((name, args),) = check.items()
        # A file that a script wrote is really looked at; of any other nothing is known.
        if name == "json_metric" and Path(args["path"]).exists():
            verdict, found = CHECKS[name](dict(args))
            return CheckResult(verdict=verdict, evidence=found)
        if name == "server_load":  # it works, for as long as it lives
            return CheckResult(verdict="pass", evidence={"moved": state.now})
        holds = alive if name == "process_alive" else self._in_memory(state, json.dumps(args))
        return CheckResult(verdict="pass" if holds else "fail", evidence={"simulated": True})

    def _in_memory(self, state: State, about: str) -> bool:
        """Shared memory is empty after a boot until the copy has run again."""
        boot = state.machines[self.address].boot
        copies = [job for job in state.jobs.values() if state.script(job.task).in_memory]
        if not any(state.script(job.task).in_memory in about for job in copies):
            return True
        return any(
            (job.machine, job.boot) == (self.address, boot) and job.ended is not None
            for job in copies
        )

    def _identity(self, state: State) -> Identity:
        machine = state.machines[self.address]
        return Identity(
            boot_id=f"boot-{machine.boot}",
            machine_id=f"{self.address}-{machine.identity}",
            pid1_start="1",
        )

    def _launch(self, state: State, spec: JobSpec) -> JobStatus:
        if spec.attempt in state.jobs:
            return self._status(state, spec.attempt)
        for name, job in state.jobs.items():
            if job.task == spec.task and state.lives(job):
                raise HostFenceHeld(
                    f"{spec.task} runs", attempt=name, generation=job.generation, resource="task"
                )
        job = self._new(state, spec.task, spec.generation)
        state.jobs[spec.attempt] = job
        if sum(state.lives(j) for j in state.jobs.values() if j.task == spec.task) > 1:
            state.wrong.append(f"{spec.task} was started twice")
        return self._status(state, spec.attempt)

    def _new(self, state: State, task: str, generation: int, *, burned: bool = False) -> Job:
        from tests.support.simulation.fleet import HOUR, Job

        machine = state.machines[self.address]
        script = state.script(task)
        before = sum(job.task == task for job in state.jobs.values())
        return Job(
            task=task,
            machine=self.address,
            boot=machine.boot,
            identity=machine.identity,
            generation=generation,
            started=state.now,
            ends=None if script.service else state.now + script.hours * HOUR,
            code=script.exits[before] if before < len(script.exits) else 0,
            burned=burned,
        )

    def _status(self, state: State, attempt: str) -> JobStatus:
        job = state.jobs.get(attempt)
        machine = state.machines[self.address]
        if job is None or job.identity != machine.identity:
            rebuilt = job is not None
            return JobStatus(
                attempt=attempt,
                state="lost" if rebuilt else "absent",
                reason="rebuilt" if rebuilt else "",
                cls="lost_rebuilt" if rebuilt else None,
            )
        if job.burned:
            return JobStatus(attempt=attempt, state="burned")
        if job.ended is not None:
            return self._ended(state, attempt, job)
        if job.boot != machine.boot:
            return JobStatus(attempt=attempt, state="lost", reason="reboot", cls="lost_reboot")
        return JobStatus(
            attempt=attempt,
            state="running",
            pid=4242,
            beat=int(state.now),
            out_size=len(self._log(state, attempt, "out")),
        )

    def _ended(self, state: State, attempt: str, job: Job) -> JobStatus:
        cls = "stopped" if job.stopped else "signal" if job.signal else "exit" if job.code else "ok"
        if cls == "ok":
            for name, text in state.script(job.task).files.items():
                path = Path(self.work) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return JobStatus(
            attempt=attempt,
            state="exited",
            exit_code=None if job.signal else job.code,
            signal=job.signal,
            cls=cls,
            out_size=len(self._log(state, attempt, "out")),
            err_size=len(self._log(state, attempt, "err")),
            started_at=_moment(job.started),
            ended_at=_moment(job.ended),
        )

    def _log(self, state: State, attempt: str, stream: Stream) -> bytes:
        job = state.jobs[attempt]
        if stream == "out":
            return f"{job.task} begins\n".encode()
        if stream == "err" and job.ended is not None and job.code:
            return (state.script(job.task).says + "\n").encode()
        return b""


class Kill:
    """Kills this very process with SIGKILL at the n-th moment at which that could matter."""

    def __init__(self, at: int, after: str = "") -> None:
        self.left = at
        self.after = after
        """Or at the first one after a job of this task ended."""

    def maybe(self, *, now: bool = False) -> None:
        """One such moment."""
        import os
        import signal

        self.left -= 1
        if self.left == 0 or now:
            os.kill(os.getpid(), signal.SIGKILL)


def _moment(seconds: float | None) -> str:
    return (BEGINNING + timedelta(seconds=seconds or 0.0)).isoformat()


def _machine() -> Any:
    from tests.support.simulation.fleet import Machine

    return Machine()
