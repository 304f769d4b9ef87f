"""A host: jobs, checks and files on one machine, over any transport."""

from __future__ import annotations

import base64
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from remote.errors import HostFenceHeld, LaunchFailed, RemoteError, Unreachable
from remote.host_files import HostFiles
from remote.model import (
    CheckResult,
    Claim,
    FoundJob,
    Identity,
    JobSpec,
    JobStatus,
    LogChunk,
    Shrunk,
    StopReport,
    Stream,
    TaskOwner,
)
from remote.program import ROUND_TRIP_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Host(HostFiles):
    """One machine: what it is, and the jobs on it."""

    # --- the machine ---

    def identity(self) -> Identity:
        self._verb("poll", {"attempts": []})
        assert self.last_identity is not None
        return self.last_identity

    def facts(self, *, look_at: Sequence[str] = ()) -> dict[str, Any]:
        """What the machine has: CPUs, memory, disks, GPUs, Pythons, limits; how its clock goes.

        `radar` has a row for the root, the home and each folder of `look_at`.
        """
        self.identity()  # finds Python and puts the program there: that is not to be timed
        before = time.time()
        facts: dict[str, Any] = self._verb(
            "facts", {"look_at": list(look_at)}, timeout=2 * ROUND_TRIP_S
        )["facts"]
        after = time.time()
        # It looked at its clock after its work, at some moment of the rest: half of it is doubt.
        earliest = before + facts.pop("took_s")
        facts["clock"] = {
            "offset_s": round(facts["unix_time"] - (earliest + after) / 2, 3),
            "error_s": round((after - earliest) / 2, 3),
        }
        facts["reached"] = getattr(self.transport, "way", "")
        return facts

    def radar(self, paths: Sequence[str]) -> list[dict[str, Any]]:
        """How fast folders are: `verdict` is ok, slow, hung or unknown, `why` has the figures.

        A slow or hung one has an `alternative`: a local folder and its free bytes.
        """
        answer = self._verb("radar", {"paths": list(paths)}, timeout=ROUND_TRIP_S + 10 * len(paths))
        rows: list[dict[str, Any]] = answer["radar"]
        return rows

    def check(
        self,
        checks: Sequence[Mapping[str, Any]],
        *,
        attempt: str | None = None,
        timeout: float = 60,
    ) -> list[CheckResult]:
        """Run checks on the host, in order; one verdict each."""
        if not checks:
            return []
        alive = None
        if any("process_alive" in check for check in checks):
            if attempt is None:
                raise RemoteError("process_alive was asked without an attempt")
            status = self.poll([attempt])[attempt]
            alive = {"state": status.state, "pid": status.pid, "reason": status.reason}
        request = {"checks": [dict(check) for check in checks], "alive": alive, "budget_s": timeout}
        answer = self._verb("checks", request, timeout=timeout + 15)
        return [
            CheckResult(verdict=one["verdict"], evidence=one["evidence"])
            for one in answer["results"]
        ]

    # --- jobs ---

    def job_dir(self, attempt: str) -> str:
        return f"{self._program.folder(self.transport)}/jobs/{attempt}"

    def launch(self, spec: JobSpec) -> JobStatus:
        """Start an attempt, or say how it goes when it was started before."""
        body = {
            "spec": {
                "attempt": spec.attempt,
                "task": spec.task,
                "generation": spec.generation,
                "argv": list(spec.argv),
                "env": dict(spec.env),
                "cwd": spec.cwd,
                "time_limit_s": spec.time_limit_s,
                "ports": list(spec.ports),
                "resources": list(spec.resources),
                "shm": list(spec.shm),
                "grace_s": spec.grace_s,
            },
            "secrets": dict(spec.secrets),
            "by": spec.by,
        }
        answer = self._verb("launch", body, timeout=ROUND_TRIP_S, refusals=True)
        if answer["ok"]:
            return _job_status(answer["status"])
        text = f"Cannot start {spec.task} on {self.label}: {answer['message']}"
        if answer["error"] in ("fence_held", "stale_generation"):
            raise HostFenceHeld(
                text,
                attempt=str(answer["attempt"]),
                generation=int(answer["generation"]),
                resource=str(answer.get("what", "")),
                holder=answer.get("holder"),
            )
        if answer["error"] in ("unknown", "busy"):
            raise Unreachable(text, hint="it may still start; ask for its state")
        raise LaunchFailed(text, kind=answer["error"])

    def poll(self, attempts: Iterable[str]) -> dict[str, JobStatus]:
        """The state of many attempts in one round trip; also renews `last_identity`."""
        answer = self._verb("poll", {"attempts": list(attempts)})
        return {name: _job_status(found) for name, found in answer["statuses"].items()}

    def jobs(self, *, limit: int = 500) -> tuple[list[FoundJob], list[dict[str, Any]]]:
        """The newest jobs of this workspace, whoever started them, to adopt or to compare with.

        Second: processes of its jobs that no running job owns (`pid`, `command`, `attempt`).
        """
        answer = self._verb("jobs", {"limit": limit}, timeout=2 * ROUND_TRIP_S)
        found = [
            FoundJob(
                task=one["task"] or "",
                generation=one["generation"] or 0,
                ports=tuple(one["ports"] or ()),
                resources=tuple(one["resources"] or ()),
                status=_job_status(one["status"]),
            )
            for one in answer["jobs"]
        ]
        return found, answer["strays"]

    def owner(self, task: str) -> TaskOwner | None:
        """The attempt that a task belongs to there, whoever started it; None when nobody did."""
        found = self._verb("owner", {"task": task})["owner"]
        if found is None:
            return None
        return TaskOwner(
            attempt=str(found["attempt"]),
            generation=int(found["generation"]),
            by=str(found["by"] or ""),
            at=str(found["at"] or ""),
            status=_job_status(found["status"]),
        )

    def stop(
        self,
        attempt: str,
        *,
        grace_s: float,
        ports: Sequence[int] = (),
        generation: int | None = None,
    ) -> StopReport:
        """End a job with all its processes, and prove it. An older generation is refused."""
        body = {
            "attempt": attempt, "grace_s": grace_s, "ports": list(ports), "generation": generation
        }  # fmt: skip
        answer = self._verb("stop", body, timeout=2 * grace_s + 2 * ROUND_TRIP_S)
        return StopReport(
            state=answer["state"],
            survivors=tuple(answer["survivors"]),
            evidence=answer["evidence"],
        )

    def extend(
        self, attempt: str, *, time_limit_s: float | None, generation: int | None = None
    ) -> float | None:
        """Set another time limit, counted from the start of the job; None takes it away."""
        body = {"attempt": attempt, "time_limit_s": time_limit_s, "generation": generation}
        limit: float | None = self._verb("extend", body)["time_limit_s"]
        return limit

    def hand_keys(
        self, attempt: str, values: Mapping[str, str], *, since: float, end: float, generation: int
    ) -> None:
        """Give a running job new keys in place of those that it has. One that has ended refuses."""
        keys = {"values": dict(values), "since": since, "end": end}
        self._verb("hand_keys", {"attempt": attempt, "keys": keys, "generation": generation})

    def set_draining(self, address: str, *, on: bool) -> list[str]:
        """Tell clients on the host that a server (HOST:PORT) takes no new requests, or does again.

        Returns all that take none now.
        """
        marked: list[str] = self._verb("draining", {"address": address, "on": on})["draining"]
        return marked

    def resources(self) -> list[Claim]:
        """Every GPU, port and shared-memory name of the machine that some attempt holds."""
        names = [field.name for field in dataclasses.fields(Claim)]
        found = self._verb("resources", {})["resources"]
        return [Claim(**{name: one[name] for name in names}) for one in found]

    def burn(self, attempt: str) -> bool:
        """Make sure that an attempt never runs. False: too late, it had started."""
        return bool(self._verb("burn", {"attempt": attempt})["burned"])

    def collect_garbage(
        self,
        collected: Iterable[str],
        *,
        keep: int = 20,
        older_than_s: float = 7 * 86400.0,
        only_tell: bool = False,
    ) -> list[Shrunk]:
        """Shrink old jobs to their outcome and the last 64 KiB of each log; what went.

        Args:
            collected: attempts whose outcome and logs the caller has stored. Others stay whole,
                those of other databases too; so does whatever is live.
            keep: this many of the newest stay whole.
            only_tell: what would go; nothing does.
        """
        body = {"collected": list(collected), "keep": keep, "older_than_s": older_than_s}
        body |= {"only_tell": True} if only_tell else {}
        answer = self._verb("collect_garbage", body, timeout=5 * ROUND_TRIP_S)
        return [Shrunk(**{**one, "left": tuple(one["left"])}) for one in answer["gone"]]

    def read_log(
        self,
        attempt: str,
        stream: Stream,
        *,
        offset: int,
        limit: int = 1 << 18,
        file_id: str = "",
    ) -> LogChunk:
        """Bytes of a stream. Pass the last `file_id` to learn of a replaced file too."""
        body = {"attempt": attempt, "stream": stream, "offset": offset, "limit": limit}
        answer = self._verb("read", {**body, "file_id": file_id})
        return LogChunk(
            data=base64.b64decode(answer["data"]),
            offset=answer["offset"],
            size=answer["size"],
            file_id=answer["file_id"],
            restarted=answer["restarted"],
        )

    def read_out(self, attempt: str) -> dict[str, Any] | None:
        """What the payload wrote to $RUNBOOK_OUT; None when it is absent or no JSON object."""
        out: dict[str, Any] | None = self._verb("read_out", {"attempt": attempt})["out"]
        return out


def _job_status(found: Mapping[str, Any]) -> JobStatus:
    return JobStatus(**found)
