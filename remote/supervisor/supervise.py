"""The supervisor: one payload, from its start to its record."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from remote.supervisor.base import crash_point, utc
from remote.supervisor.ending import classify, split_status
from remote.supervisor.files import Record, publish, publish_once, read_json, to_bytes
from remote.supervisor.hiding import start_hiding
from remote.supervisor.holdings import Holdings, merged
from remote.supervisor.identity import identity, start_ticks
from remote.supervisor.keys import keys_path, remove_keys, span_of
from remote.supervisor.locks import take_lock
from remote.supervisor.logs import Bounds
from remote.supervisor.memory import oom_counters
from remote.supervisor.processes import (
    become_subreaper,
    describe,
    end_all,
    is_live,
    job_processes,
    send_group,
)
from remote.supervisor.resources import release, touch

if TYPE_CHECKING:
    from remote.supervisor.base import JSON

LEFTOVER_GRACE_S = 5.0

DRAIN_S = 10.0  # how long the record waits for the last output to be hidden and written

BEAT_S = 1.0

TOUCH_BEATS = 3600

LOOK_BEATS = 15  # how often what the job holds is noted, for the case that it dies at once


class Supervisor:
    """One payload, from its start to its record."""

    def __init__(self, job: str, ready: int, held: dict[str, int]) -> None:
        self.job = job
        self.held = held  # resources of the machine, locked while these files are open
        self.ready = ready
        self.spec: JSON = {}
        self.cookie = ""
        self.payload = 0
        self.wait_status: int | None = None
        self.usage: Any = None
        self.began = time.monotonic()
        self.started_at = ""
        self.beats = 0
        self.next_beat = 0.0
        self.limit_s: float | None = None  # from its start
        self.extended = ""  # the last extension that we heard of
        self.cause = ""  # why we end it ourselves: "stopped" or "time_limit"
        self.grace = 20.0
        self.told = False  # SIGTERM came for us
        self.orphans = 0
        self.streams: list[int] = []  # what the payload writes into
        self.drained: int | None = None  # at its end when hidden output is all written
        self.own = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}

    def path(self, name: str) -> str:
        return os.path.join(self.job, name)

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self.ready, text.encode("utf-8", "replace") + b"\n")
        with contextlib.suppress(OSError):
            os.close(self.ready)

    def run(self) -> None:
        self._take_signals()
        secrets = _read_secrets()
        spec, why = read_json(self.path("spec.json"))
        if spec is None:
            return self.say(f"spec.json is {why}")
        self.spec, self.cookie = spec, str(spec["cookie"])
        lock = os.open(self.path("lock"), os.O_RDWR | os.O_CLOEXEC)
        # A poll may hold it for a moment, another supervisor for long: `started` tells them apart.
        if not take_lock(lock, 5.0, lambda: os.path.exists(self.path("started"))):
            return self.say("")
        crash_point("supervise.locked")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self.record = Record(self.path("exit.json"))
            self.ident = Record(self.path("ident.json"))
            self.bounds = Bounds(self.job)
            self.beat_fd = os.open(self.path("beat"), flags, 0o600)
            os.pwrite(self.beat_fd, b"%020d\n" % 0, 0)
            mark = {"by": "supervisor", "at": utc(), "identity": identity(), "supervisor": self.own}
            if not publish_once(self.path("started"), to_bytes(mark)):
                return self.say("")
        except OSError as error:
            return self.say(f"cannot prepare the job directory: {error.strerror}")
        crash_point("supervise.started")
        self._supervise(secrets)
        return None

    def _take_signals(self) -> None:
        self.wake, wake_end = os.pipe()
        for end in (self.wake, wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGUSR1):  # a child ended; look into ctl/
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "told", True))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR2):
            # Not SIG_IGN, which the payload would inherit: a shell starts what it puts into the
            # background with two of them ignored.
            signal.signal(number, lambda *_: None)

    def _supervise(self, secrets: JSON) -> None:
        problem, keys = self._open_streams(secrets), span_of(secrets)
        become_subreaper()
        self.oom_before = oom_counters()
        self.holdings = Holdings.begin(self.job, self.spec)
        problem = problem or self._spawn(secrets)
        secrets.clear()
        if problem:
            self.record.show(self._result("never_started", None, None, problem, {}))
            release(self.held)
            return self.say(problem)
        crash_point("supervise.spawned")
        self.ident.show(
            {
                "attempt": self.spec["attempt"], "generation": self.spec["generation"],
                "identity": identity(), "supervisor": self.own, "cookie": self.cookie,
                "pid": self.payload, "pgid": self.payload, "started_at": self.started_at,
                "start_ticks": start_ticks(self.payload), "keys": keys,
            }
        )  # fmt: skip
        self.say("")
        while self.wait_status is None:
            select.select([self.wake], [], [], self._pause())
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
            self._tick()
            if not self.cause:
                self._ask()
            if self.cause and self.wait_status is None:
                break
        self._finish()
        return None

    def _pause(self) -> float:
        until = self.next_beat
        if self.limit_s is not None:
            until = min(until, self.began + self.limit_s)
        return min(max(until - time.monotonic(), 0.0), BEAT_S)

    def _open_streams(self, secrets: JSON) -> str:
        """The logs; with secrets, behind processes that hide them. These must be nobody's child."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            files = [os.open(self.path(name), flags, 0o600) for name in ("out.log", "err.log")]
            if secrets:
                values = [str(value) for value in secrets.values()]
                self.streams, self.drained = start_hiding(values, files, keys_path(self.job))
                for file in files:
                    os.close(file)
            else:
                self.streams = files
        except OSError as error:
            return f"cannot open the logs: {error.strerror}"
        return ""

    def _drain(self, evidence: JSON) -> None:
        """Waits until all that was written is in the logs."""
        until = time.monotonic() + DRAIN_S
        while self.drained is not None:
            if select.select([self.drained], [], [], 0.2)[0]:
                os.close(self.drained)
                self.drained = None
            elif time.monotonic() > until:
                evidence["output_held_open"] = True
                return
            self._tick()

    def _spawn(self, secrets: JSON) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RUNBOOK_")}
        environment.update({str(k): str(v) for k, v in (self.spec.get("env") or {}).items()})
        environment.update({str(k): str(v) for k, v in secrets.items()})
        environment.update(
            RUNBOOK_ATTEMPT=self.spec["attempt"], RUNBOOK_TASK=self.spec["task"],
            RUNBOOK_JOB_DIR=self.job, RUNBOOK_PROGRESS=self.path("progress.jsonl"),
            RUNBOOK_OUT=self.path("out.json"), RUNBOOK_COOKIE=self.cookie,
        )  # fmt: skip
        out, err = self.streams
        self.started_at, self.began = utc(), time.monotonic()
        self.limit_s = float(self.spec.get("time_limit_s") or 0) or None
        self.grace = float(self.spec.get("grace_s", 20.0))
        cwd = os.path.expanduser(self.spec.get("cwd") or "") or self.job
        try:
            os.makedirs(cwd, exist_ok=True)  # the work folder of a host that is used first now
            os.umask(int(os.environ.get("RUNBOOK_UMASK") or "22", 8))  # the login's, not ours
            child = subprocess.Popen(
                [str(word) for word in self.spec["argv"]], env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return "cannot start {}: {}".format(self.spec["argv"][:1], error)
        finally:
            os.umask(0o077)
            os.close(out)
            os.close(err)
        self.payload = child.pid
        # We reap by waitpid(-1), adopted orphans too; Popen must not wait for it or warn.
        child.returncode = 0
        return ""

    def _tick(self) -> None:
        """What must go on in every phase: reap, beat, keep the logs bounded."""
        while True:
            try:
                pid, code, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.payload:
                self.wait_status, self.usage = code, usage
            else:
                self.orphans += 1
        now = time.monotonic()
        if now >= self.next_beat:
            self.beats, self.next_beat = self.beats + 1, now + BEAT_S
            with contextlib.suppress(OSError):
                os.pwrite(self.beat_fd, b"%020d\n" % self.beats, 0)
            self.bounds.keep()
            if self.beats % TOUCH_BEATS == 0:
                touch(self.held)
            if self.beats % LOOK_BEATS == 0 or self.beats in (1, 3, 8):
                self._look()

    def _look(self) -> None:
        """Note what the job holds. It must not take us down: who ends the payload then?"""
        with contextlib.suppress(OSError, ValueError):
            self.holdings.look(self._own_processes())

    def _ask(self) -> None:
        """Is there a reason to end the payload? Requests count from the owner of the task only."""
        extend, stop = self._request("extend"), self._request("stop")
        if extend and extend.get("id") != self.extended:
            self._extend(extend)
        if stop:
            self.cause = "stopped"
            self.grace = float(stop.get("grace_s", self.grace))
        elif self.told:
            self.cause = "stopped"
        elif self.limit_s is not None and time.monotonic() >= self.began + self.limit_s:
            self.cause = "time_limit"

    def _request(self, name: str) -> JSON | None:
        request, _ = read_json(self.path("ctl/" + name))
        ours = request and request.get("generation") == self.spec["generation"]
        return request if ours and self._is_current() else None

    def _extend(self, request: JSON) -> None:
        self.extended = str(request.get("id"))
        limit = request.get("time_limit_s")
        self.limit_s = None if limit is None else float(limit)
        answer = {"id": self.extended, "time_limit_s": self.limit_s, "at": utc()}
        with contextlib.suppress(OSError):
            publish(self.path("ctl/extended"), to_bytes(answer))

    def _is_current(self) -> bool:
        workspace = os.path.dirname(os.path.dirname(self.job))
        path = os.path.join(workspace, "tasks", self.spec["task"], "current")
        current, why = read_json(path)
        if current is None:
            return why == "absent"
        return bool(current.get("attempt") == self.spec["attempt"])

    def _own_processes(self) -> list[int]:
        pids = job_processes(self.job, self.own, self.cookie)
        return [pid for pid in pids if is_live(pid)]

    def _finish(self) -> None:
        survivors: list[JSON] = []
        evidence: JSON = {}
        if self.cause:
            self._look()
            send_group(self.payload, signal.SIGTERM)
            survivors = end_all(self._own_processes, self.grace, self._tick)
            self._tick()
        else:
            # The payload ended by itself; what it left behind must not outlive the record.
            crash_point("supervise.payload_ended")
            assert self.wait_status is not None
            code, number = split_status(self.wait_status)
            with contextlib.suppress(OSError):
                self.record.draft(self._result("", code, number, "before the sweep", {}))
            self._look()
            left = self._own_processes()
            if left:
                evidence["leftovers"] = [describe(pid) for pid in left][:20]
                grace = min(self.grace, LEFTOVER_GRACE_S)
                survivors = end_all(self._own_processes, grace, self._tick)
        survivors = merged([*survivors, *self._clear(evidence)])
        if survivors:
            evidence["survivors"] = survivors[:20]
        self._drain(evidence)
        self._record(evidence)
        remove_keys(self.job)  # after the record: whoever hands out new ones looks for that
        crash_point("supervise.recorded")
        if not survivors:
            release(self.held)

    def _clear(self, evidence: JSON) -> list[JSON]:
        """Take back what its processes held; what could not be had."""
        gone, left = self.holdings.sweep()
        if gone:
            evidence["shm_removed"] = gone[:50]
        if self.holdings.gpus:
            left += self.holdings.wait_for_gpus(self._tick)
        return left

    def _record(self, evidence: JSON) -> None:
        if self.told:
            evidence["supervisor_signal"] = int(signal.SIGTERM)
        if self.extended:
            evidence["time_limit_s"] = self.limit_s
        self.bounds.keep()  # what came since the last beat
        if self.bounds.dropped:
            evidence["log_dropped"] = {k: list(v) for k, v in self.bounds.dropped.items()}
        evidence["orphans_reaped"] = self.orphans
        if self.usage is not None:  # of the payload and the children that it waited for
            evidence["usage"] = {
                "cpu_s": round(self.usage.ru_utime + self.usage.ru_stime, 3),
                "max_rss_bytes": self.usage.ru_maxrss * 1024,
            }
        code, number = (None, None)
        if self.wait_status is not None:
            code, number = split_status(self.wait_status)
        if self.cause == "time_limit":
            cls, reason = "time_limit", f"it ran past its limit of {self.limit_s} s"
        elif self.cause:
            cls, reason = "stopped", "it was asked to stop"
        else:
            cls, reason = classify(self.job, code, number, self.oom_before, evidence)
        self.record.show(self._result(cls, code, number, reason, evidence))

    def _result(
        self, cls: str, code: int | None, number: int | None, reason: str, evidence: JSON
    ) -> JSON:
        return {
            "v": 1, "attempt": self.spec["attempt"], "generation": self.spec["generation"],
            "cls": cls, "exit_code": code, "signal": number, "reason": reason,
            "pid": self.payload or None, "pgid": self.payload or None,
            "started_at": self.started_at or None, "ended_at": utc(),
            "duration_s": round(time.monotonic() - self.began, 3), "evidence": evidence,
        }  # fmt: skip


def _read_secrets() -> JSON:
    head = sys.stdin.buffer.readline()
    body = sys.stdin.buffer.read(int(head))
    if len(body) != int(head):
        raise SystemExit("the launch was cut short")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    value = json.loads(body.decode("ascii"))
    return value if isinstance(value, dict) else {}
