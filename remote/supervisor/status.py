"""What the evidence in a job directory says about an attempt."""

from __future__ import annotations

import contextlib
import json
import os

from remote.supervisor.base import JSON, NAME, STREAMS, checked_name, job_path
from remote.supervisor.files import file_size, read_json
from remote.supervisor.identity import differences, identity, lost_by, start_ticks
from remote.supervisor.keys import span_now
from remote.supervisor.locks import lock_is_held
from remote.supervisor.processes import (
    describe,
    is_live,
    job_mark,
    job_processes,
    marked,
    marked_below,
)


def last_progress(job: str) -> tuple[JSON | None, int]:
    """The last whole line that is a JSON object, and the size of the file."""
    path = os.path.join(job, STREAMS["progress"])
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 65536))
            tail = file.read(65536)
    except OSError:
        return None, 0
    for line in reversed(tail.split(b"\n")[:-1]):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line.decode("utf-8"))
            if isinstance(value, dict):
                return value, size
    return None, size


def beat_of(job: str) -> int:
    try:
        with open(os.path.join(job, "beat"), "rb") as file:
            return int(file.read(64).split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def status(workspace: str, attempt: str, now: JSON) -> JSON:
    """What the evidence says about one attempt; never a guess from silence."""
    job = job_path(workspace, attempt)
    found = _evidence(job, attempt, now)
    progress, size = last_progress(job)
    result: JSON = {
        "attempt": attempt, "state": "absent", "reason": "", "pid": None, "pgid": None,
        "beat": beat_of(job), "exit_code": None, "signal": None, "cls": None,
        "progress": progress, "progress_size": size,
        "out_size": file_size(os.path.join(job, "out.log")),
        "err_size": file_size(os.path.join(job, "err.log")),
        "started_at": None, "ended_at": None, "evidence": {}, "keys": None,
    }  # fmt: skip
    result.update(found)
    return result


def _evidence(job: str, attempt: str, now: JSON) -> JSON:
    if not os.path.isdir(job):
        alive = marked({job_mark(job): job}).get(job)
        if alive:
            return {
                "state": "lost", "cls": "lost_evidence_gone",
                "reason": "the job directory is gone but processes of the attempt live",
                "evidence": {"survivors": [describe(pid) for pid in alive]},
            }  # fmt: skip
        return {"reason": "no job directory"}
    # The lock first and exit.json after it: a supervisor writes exit.json before it lets go, so
    # this order never reads "dead, and left no result" from one that was just finishing.
    held = lock_is_held(job)
    evidence: JSON = {}
    ended, why = read_json(os.path.join(job, "exit.json"))
    if ended is not None and ended.get("attempt") == attempt:
        return _ended(job, ended)
    if why != "absent":
        evidence["unreadable"] = "exit.json: %s" % (why or "of another attempt")
    started, why = read_json(os.path.join(job, "started"))
    if started is None and why == "absent":
        reason = "its supervisor is about to start" if held else "published, not started"
        return {"state": "published", "reason": reason, "evidence": evidence}
    started = started or {}
    if started.get("by") == "burn":
        return {
            "state": "burned", "cls": "never_started", "reason": "burned before it started",
            "evidence": evidence,
        }  # fmt: skip
    ident, why = read_json(os.path.join(job, "ident.json"))
    if ident is None and why != "absent":
        evidence["unreadable_ident"] = why
    ident = ident or {}
    common: JSON = {
        "pid": ident.get("pid"), "pgid": ident.get("pgid"),
        "started_at": ident.get("started_at") or started.get("at"), "evidence": evidence,
    }  # fmt: skip
    if held:
        keys = span_now(job, ident.get("keys"))
        return dict(common, state="running", reason="its supervisor holds the lock", keys=keys)
    supervisor = started.get("supervisor") or {}
    if _lives(supervisor):
        # One fact against another: no verdict. A moment later the process is gone as well, or
        # somebody put another lock file there.
        reason = "its lock is free, but its supervisor lives: no verdict"
        return dict(common, state="running", reason=reason)
    return dict(common, state="lost", **_lost(job, started, evidence, now))


def _lives(process: JSON) -> bool:
    """Whether this very process lives, not another with its number."""
    pid, ticks = int(process.get("pid") or 0), int(process.get("start_ticks") or 0)
    return pid > 1 and ticks > 0 and start_ticks(pid) == ticks and is_live(pid)


def _ended(job: str, ended: JSON) -> JSON:
    keys = ("pid", "pgid", "exit_code", "signal", "cls", "started_at", "ended_at", "evidence")
    result: JSON = {key: ended.get(key) for key in keys}
    result.update(state="exited", reason=ended.get("reason") or "")
    left = [row for row in (ended.get("evidence") or {}).get("survivors") or [] if _lives(row)]
    if left:
        result["evidence"] = dict(ended["evidence"], still_there=left)
    return result


def _lost(job: str, started: JSON, evidence: JSON, now: JSON) -> JSON:
    """How it was lost. Each verdict rests on the free lock and on a second, independent fact."""
    then = started.get("identity") or {}
    changed = lost_by(then, now) if then else ""
    evidence["identity_then"] = started.get("identity")
    spec = read_json(os.path.join(job, "spec.json"))[0] or {}
    alive = job_processes(job, started.get("supervisor") or {}, str(spec.get("cookie") or ""))
    evidence["survivors"] = [describe(pid) for pid in alive]
    evidence["facts"] = ["its lock is free", *differences(then, now)]
    if changed and not alive:
        what = {
            "lost_rebuilt": "the machine is another one than it started on",
            "lost_reboot": "the machine or container restarted since",
        }
        return {"cls": changed, "reason": what[changed]}
    evidence["facts"].append("its supervisor's process is gone")
    draft, _ = read_json(os.path.join(job, "exit.json.next"))
    if draft:
        evidence["unfinished_record"] = draft
    reason = "the supervisor died without a result; "
    reason += "%d of its processes live" % len(alive) if alive else "no process of it is left"
    return {"cls": "lost_supervisor_died", "reason": reason}


def is_settled(found: JSON) -> bool:
    """Proved to run no more, now or later."""
    evidence = found["evidence"] or {}
    if found["state"] in ("exited", "burned"):
        return not evidence.get("still_there")
    return found["state"] in ("absent", "lost") and not evidence.get("survivors")


def verb_jobs(request: JSON, workspace: str) -> JSON:
    """Every job of the workspace, the newest first, and live processes that no running job owns.

    So a client that never heard of a job finds it, and none has to be guessed at.
    """
    now, jobs = identity(), os.path.join(workspace, "jobs")
    names = []
    with contextlib.suppress(FileNotFoundError), os.scandir(jobs) as entries:
        plain = (entry for entry in entries if NAME.fullmatch(entry.name))
        names = [
            (entry.stat(follow_symlinks=False).st_mtime, entry.name)
            for entry in plain
            if entry.is_dir(follow_symlinks=False) and not entry.name.endswith(".tmp")
        ]
    found: list[JSON] = []
    for _, name in sorted(names, reverse=True)[: int(request.get("limit") or 500)]:
        spec = read_json(os.path.join(jobs, name, "spec.json"))[0] or {}
        about = {key: spec.get(key) for key in ("task", "generation", "ports", "resources")}
        found.append(dict(about, status=status(workspace, name, now)))
    running = {one["status"]["attempt"] for one in found if one["status"]["state"] == "running"}
    strays = []
    for job, pids in marked_below(jobs + "/").items():
        name = os.path.basename(job)
        if name not in running:
            strays += [dict(describe(pid), attempt=name) for pid in pids]
    return {"jobs": found, "strays": strays}


def verb_poll(request: JSON, workspace: str) -> JSON:
    now = identity()
    names = [checked_name(name, "attempt") for name in request.get("attempts", [])]
    return {"statuses": {name: status(workspace, name, now) for name in names}}


def verb_owner(request: JSON, workspace: str) -> JSON:
    """The attempt that a task belongs to here, and how it goes, for one that never heard of it."""
    task = checked_name(request.get("task"), "task")
    owner = read_json(os.path.join(workspace, "tasks", task, "current"))[0]
    if not owner:
        return {"owner": None}
    attempt = checked_name(owner.get("attempt"), "attempt")
    known = {key: owner.get(key) for key in ("attempt", "generation", "at", "by")}
    return {"owner": dict(known, status=status(workspace, attempt, identity()))}
