"""Ending a job, and proving it."""

from __future__ import annotations

import os
import signal

from remote.supervisor.base import JSON, Refused, checked_name, job_path, utc, wait_until
from remote.supervisor.files import publish, read_json, to_bytes
from remote.supervisor.identity import identity, stat_fields
from remote.supervisor.launch import verb_burn
from remote.supervisor.locks import lock_is_held
from remote.supervisor.ports import listening, port_holders
from remote.supervisor.processes import KILL_WAIT_S, describe, end_all, job_processes, send
from remote.supervisor.status import status
from remote.supervisor.supervise import BEAT_S


def verb_stop(request: JSON, workspace: str) -> JSON:
    """End a job and prove it: no process of it, and its ports free."""
    attempt = checked_name(request.get("attempt"), "attempt")
    job = job_path(workspace, attempt)
    grace = float(request.get("grace_s", 20.0))
    spec = read_json(os.path.join(job, "spec.json"))[0] or {}
    asked = request.get("generation")
    if asked is not None and spec and asked != spec.get("generation"):
        raise Refused("stale_generation", f"attempt {attempt} is of another generation")
    found = status(workspace, attempt, identity())
    if found["state"] == "published":
        verb_burn(request, workspace)
        found = status(workspace, attempt, identity())
    started = read_json(os.path.join(job, "started"))[0] or {}
    supervisor = started.get("supervisor") or {}
    if found["state"] == "running":
        _ask_to_stop(job, spec, supervisor, grace)
        stuck = stat_fields(int(supervisor.get("pid") or 0))[:1] in (["T"], ["t"])
        if not stuck:
            wait_until(lambda: not lock_is_held(job), grace + KILL_WAIT_S + 2 * BEAT_S)

    def find() -> list[int]:
        return job_processes(job, supervisor, str(spec.get("cookie") or ""))

    # Whatever its supervisor left, or all of it when that is dead or stuck.
    quick = grace if not lock_is_held(job) else 0.0
    survivors = end_all(find, quick, lambda: None)
    if lock_is_held(job) and not wait_until(lambda: not lock_is_held(job), 2 * BEAT_S):
        pid = int(supervisor.get("pid") or 0)
        send(pid, signal.SIGKILL, int(supervisor.get("start_ticks") or 0))
        if not wait_until(lambda: not lock_is_held(job), KILL_WAIT_S):
            survivors.append(dict(describe(pid), role="supervisor"))
        survivors += end_all(find, 0.0, lambda: None)
    ports = sorted({int(port) for key in (request, spec) for port in key.get("ports") or []})
    if ports and found["state"] not in ("absent", "burned"):
        wait_until(lambda: not listening(ports), 2.0)
        known = {survivor["pid"] for survivor in survivors}
        survivors += [dict(holder, ours=holder["pid"] in known) for holder in port_holders(ports)]
    after = status(workspace, attempt, identity())
    return {
        "state": "stop_incomplete" if survivors else "stopped", "survivors": survivors,
        "evidence": {"before": found["state"], "after": after["state"], "ports": ports,
                     "cls": after["cls"], "reason": after["reason"]},
    }  # fmt: skip


def _ask_to_stop(job: str, spec: JSON, supervisor: JSON, grace_s: float) -> None:
    number = signal.SIGUSR1  # look into ctl/ now
    try:
        request = {"generation": spec.get("generation"), "grace_s": grace_s, "at": utc()}
        publish(os.path.join(job, "ctl", "stop"), to_bytes(request))
    except OSError:
        number = signal.SIGTERM  # no room for a request: the signal says the same
    send(int(supervisor.get("pid") or 0), number, int(supervisor.get("start_ticks") or 0))
