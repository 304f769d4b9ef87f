"""A host: jobs, checks and files on one machine, over any transport.

Every request is one framed round trip to one program that lives on the host under its content
hash. A lost answer raises Unreachable, and every request here is safe to repeat.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import secrets as random_source
import time
from typing import TYPE_CHECKING, Any

from remote import transfer, transfer_pull, transfer_push
from remote.archive import archive
from remote.errors import (
    CommandFailed,
    HostFenceHeld,
    LaunchFailed,
    NoRoom,
    RemoteError,
    StaleGeneration,
    TransferFailed,
    Unreachable,
    UnsupportedHost,
)
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
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from remote.transport import Transport

ROUND_TRIP_S = 60.0
BARE = ("-I", "-S")  # the scripts need no packages, and a host's site may be slow or broken
PYTHONS = "python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 /usr/bin/python3"

# Finds an interpreter and says where the root is. Works in any POSIX shell.
_FIND = f"""for p in {PYTHONS} /opt/conda/bin/python3; do
if "$p" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
exec "$p" -I -S -c "$1" "$2" "$3"; fi; done; echo "$3" >&2; exit 86"""
_WHERE = """import json, os, platform, sys
print(sys.argv[2] + json.dumps({"python": sys.executable, "system": platform.system(),
"version": platform.python_version(),
"root": os.path.realpath(os.path.expanduser(sys.argv[1]))}) + sys.argv[2])"""
# Receives a script: aside, fsync, rename, as every file here.
_RECEIVE = """import hashlib, os, sys
path, want = sys.argv[1:3]
data = sys.stdin.buffer.read()
if hashlib.sha256(data).hexdigest() != want: sys.exit("what arrived is not what was sent")
aside = "%s.%d" % (path, os.getpid())
try:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(aside, "xb") as file:
        file.write(data); file.flush(); os.fsync(file.fileno())
    os.rename(aside, path)
except OSError as error:
    sys.exit("cannot write %s: %s" % (error.filename or path, error.strerror))"""


class Host:
    """One machine. Holds no state about jobs: it asks, every time."""

    def __init__(
        self,
        transport: Transport,
        *,
        root: str,
        workspace_id: str,
        inject: Mapping[str, Any] | None = None,
    ) -> None:
        self.transport = transport
        self.root = root
        self.workspace_id = workspace_id
        self.last_identity: Identity | None = None
        self._inject = dict(inject or {})  # faults, for tests; see supervisor.INJECT
        self._python = ""
        self._at = ""

    @property
    def label(self) -> str:
        return self.transport.label

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
        self._connect()
        return f"{self._at}/{self.workspace_id}/jobs/{attempt}"

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

    def resources(self) -> list[Claim]:
        """Every GPU, port and shared-memory name of the machine that some attempt holds."""
        names = [field.name for field in dataclasses.fields(Claim)]
        found = self._verb("resources", {})["resources"]
        return [Claim(**{name: one[name] for name in names}) for one in found]

    def burn(self, attempt: str) -> bool:
        """Make sure that an attempt never runs. False: too late, it had started."""
        return bool(self._verb("burn", {"attempt": attempt})["burned"])

    def collect_garbage(
        self, collected: Iterable[str], *, keep: int = 20, older_than_s: float = 7 * 86400.0
    ) -> list[Shrunk]:
        """Shrink old jobs to their outcome and the last 64 KiB of each log; what went.

        Args:
            collected: attempts whose outcome and logs the caller has stored. Others stay whole,
                those of other databases too; so does whatever is live.
            keep: this many of the newest stay whole.
        """
        body = {"collected": list(collected), "keep": keep, "older_than_s": older_than_s}
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

    # --- files ---

    def ship(self, files: Mapping[str, bytes], *, name: str) -> str:
        """Put small files on the host under their content hash; the directory they are in."""
        digest = hashlib.sha256()
        for path in sorted(files):
            digest.update(f"{path}\0{len(files[path])}\0".encode())
            digest.update(files[path])
        body = {
            "name": f"{name}-{digest.hexdigest()[:16]}",
            "files": {path: base64.b64encode(data).decode() for path, data in files.items()},
        }
        return str(self._verb("ship", body, timeout=5 * ROUND_TRIP_S)["path"])

    def read_file(self, path: str, limit: int) -> bytes:
        return base64.b64decode(self._verb("read_file", {"path": path, "limit": limit})["data"])

    def push(
        self,
        local: Path,
        remote: str,
        *,
        progress: Callable[[transfer.Progress], None] | None = None,
        headroom: int = transfer.HEADROOM,
        patience_s: float = transfer.PATIENCE_S,
    ) -> transfer.Report:
        """Send a file or a tree to exactly this path; the same call goes on after a cut.

        Raises:
            NoRoom: the space there, less the headroom, is short.
            Unreachable: no block arrived for `patience_s`. What arrived is kept.
        """
        return transfer_push.push(
            self, local, remote, progress=progress, headroom=headroom, patience_s=patience_s
        )

    def pull(
        self,
        remote: str,
        local: Path,
        *,
        progress: Callable[[transfer.Progress], None] | None = None,
        headroom: int = transfer.HEADROOM,
        patience_s: float = transfer.PATIENCE_S,
    ) -> transfer.Report:
        """Fetch a file or a tree from the host, as `push` sends one."""
        return transfer_pull.pull(
            self, remote, local, progress=progress, headroom=headroom, patience_s=patience_s
        )

    def transfer_verb(
        self, verb: str, body: Mapping[str, Any], *, raw: bytes, timeout: float
    ) -> dict[str, Any]:
        """One request of a transfer, on the connection that no poll waits for."""
        answer = self._verb(
            verb, body, timeout=timeout, refusals=True, raw=raw, transport=self.transport.bulk()
        )
        if answer["ok"]:
            return answer
        if answer["error"] == "cut":
            raise Unreachable(f"{self.label}: {answer['message']}")
        if answer["error"] == "no_room":
            need, free = answer["need"], answer["free"]
            where, headroom = f"{body['path']} on {self.label}", int(body["headroom"])
            raise NoRoom(where, need=need, free=free, headroom=headroom)
        raise TransferFailed(f"{self.label} cannot go on with it: {answer['message']}")

    def close(self) -> None:
        self.transport.close()

    # --- round trips ---

    def _verb(
        self,
        verb: str,
        body: Mapping[str, Any],
        *,
        timeout: float = ROUND_TRIP_S,
        refusals: bool = False,
        raw: bytes = b"",
        transport: Transport | None = None,
    ) -> dict[str, Any]:
        transport = transport or self.transport
        self._connect()
        path, digest = self._program()
        mark = random_source.token_hex(16)
        request = {
            **body,
            "begin": f"<{mark}",
            "end": f"{mark}>",
            "root": self._at,
            "workspace": self.workspace_id,
            "inject": self._inject,
            "limit_s": int(timeout),
        }
        argv, data = [self._python, *BARE, path, verb], json.dumps(request).encode() + b"\n" + raw
        result = transport.run(argv, input=data, timeout=timeout)
        if result.code == 2 and b"can't open file" in result.err:
            self._push(path, digest)
            result = transport.run(argv, input=data, timeout=timeout)
        answer = _unframe(result.out, request["begin"], request["end"])
        if answer is None:
            self._python = ""  # perhaps it was replaced: look again with the next request
            if result.code is None or result.ok or b"ran past its limit" in result.err:
                raise Unreachable(
                    f"{self.label} cut its answer to {verb} short",
                    hint="ask again: requests are safe to repeat",
                )
            failed = CommandFailed(result, where=self.label)
            if verb == "launch":  # it may have died after the start
                raise Unreachable(failed.message, hint="ask for the attempt's state") from failed
            raise failed
        if "identity" in answer:
            self.last_identity = Identity(host_key=self.transport.host_key, **answer["identity"])
        if not answer["ok"] and not refusals:
            if answer["error"] == "stale_generation":
                raise StaleGeneration(f"{self.label} refuses to {verb}: {answer['message']}")
            raise RemoteError(f"{self.label} cannot {verb}: {answer['message']}")
        return answer

    def _connect(self) -> None:
        if self._python:
            return
        mark = random_source.token_hex(16)
        argv = ["sh", "-c", _FIND, "sh", _WHERE, self.root, mark]
        result = self.transport.run(argv, timeout=ROUND_TRIP_S)
        found = _unframe(result.out, mark, mark)
        if found is None:
            if mark.encode() in result.err:
                raise UnsupportedHost(
                    f"{self.label} has no Python 3.8 or newer",
                    hint="install python3 there; jobs need nothing else",
                )
            raise CommandFailed(result, where=self.label)
        if found["system"] != "Linux":
            raise UnsupportedHost(
                f"{self.label} runs {found['system']}; jobs need Linux",
                hint="bind the role to a Linux machine",
            )
        self._at = found["root"]
        self._python = found["python"]  # last: other threads take it for "connected"

    def _program(self) -> tuple[str, str]:
        """Where our program lies on the host, by its content, and its digest."""
        digest = hashlib.sha256(archive()).hexdigest()
        return f"{self._at}/{self.workspace_id}/bin/{digest[:16]}-supervisor.pyz", digest

    def _push(self, path: str, digest: str) -> None:
        argv = [self._python, *BARE, "-c", _RECEIVE, path, digest]
        sent = self.transport.run(argv, input=archive(), timeout=ROUND_TRIP_S)
        if not sent.ok:
            raise CommandFailed(
                sent,
                where=self.label,
                hint=f"make room at {self.root}, or bind the host with a --root we may write to",
            )


def _job_status(found: Mapping[str, Any]) -> JobStatus:
    return JobStatus(**found)


def _unframe(out: bytes, begin: str, end: str) -> dict[str, Any] | None:
    """The object between the marks; None when it did not come whole."""
    start = out.find(begin.encode())
    stop = out.find(end.encode(), start + len(begin)) if start >= 0 else -1
    if stop < 0:
        return None
    try:
        value: dict[str, Any] = json.loads(out[start + len(begin) : stop])
    except ValueError:
        return None
    size = value.get("raw_size", 0)
    if size:  # the content of files follows the line that ends the answer
        at = stop + len(end) + 1
        value["raw"] = memoryview(out)[at : at + size]
        return value if len(value["raw"]) == size else None
    return value
