"""Requests to a running job: end it, and prove that nothing of it is left; give it more time."""

from __future__ import annotations

import os
import signal

from remote.supervisor.base import JSON, Refused, checked_name, job_path, utc, wait_until
from remote.supervisor.files import publish, read_json, to_bytes
from remote.supervisor.holdings import GPU_WAIT_S, Holdings, merged, wait_for_ports
from remote.supervisor.identity import identity, stat_fields
from remote.supervisor.keys import remove_keys
from remote.supervisor.launch import verb_burn
from remote.supervisor.locks import lock_is_held
from remote.supervisor.processes import KILL_WAIT_S, describe, end_all, job_processes, sees, send
from remote.supervisor.resources import names_of, release_of
from remote.supervisor.status import status
from remote.supervisor.supervise import BEAT_S

ANSWER_WAIT_S = 10.0


def verb_stop(request: JSON, workspace: str) -> JSON:
    """End a job and prove it: no process of it, no memory of a GPU, its ports free."""
    attempt = checked_name(request.get("attempt"), "attempt")
    job = job_path(workspace, attempt)
    spec = read_json(os.path.join(job, "spec.json"))[0] or {}
    check_generation(request, workspace, spec)
    before = status(workspace, attempt, identity())["state"]
    if before == "published":
        verb_burn(request, workspace)
    holdings = Holdings.of(job, spec)
    survivors = _end(job, spec, float(request.get("grace_s", 20.0)), holdings)
    ports = {int(port) for key in (request, spec) for port in key.get("ports") or []}
    ports |= {int(name[5:]) for name in names_of(spec) if name.startswith("port:")}
    gone: list[str] = []
    if before not in ("absent", "burned"):
        known = {row["pid"] for row in survivors}
        holders = wait_for_ports(sorted(ports))
        survivors += [dict(row, ours=row["pid"] in known) for row in holders]
        survivors += holdings.wait_for_gpus(lambda: None)
        gone, left = holdings.sweep()
        survivors += left
    sight = sees()
    if sight == "none" and before not in ("absent", "burned", "published"):
        what = "? (no /proc here: whether processes are left cannot be seen)"
        survivors.append({"pid": None, "command": what, "holds": []})
    survivors = merged(survivors)
    if not survivors:
        release_of(job, spec)
        remove_keys(job)
    after = status(workspace, attempt, identity())
    gone += after["evidence"].get("shm_removed") or []
    return {
        "state": "stop_incomplete" if survivors else "stopped", "survivors": survivors,
        "evidence": {"before": before, "after": after["state"], "ports": sorted(ports),
                     "cls": after["cls"], "reason": after["reason"], "shm_removed": gone,
                     "sees": sight},
    }  # fmt: skip


def _end(job: str, spec: JSON, grace: float, holdings: Holdings) -> list[JSON]:
    """TERM, grace, KILL for all processes of the job; those that are left."""
    started = read_json(os.path.join(job, "started"))[0] or {}
    supervisor = started.get("supervisor") or {}
    pid = int(supervisor.get("pid") or 0)

    def find() -> list[int]:
        return job_processes(job, supervisor, str(spec.get("cookie") or ""))

    holdings.look(find())
    if lock_is_held(job):
        _ask_to_stop(job, spec, supervisor, grace)
        if stat_fields(pid)[:1] not in (["T"], ["t"]):  # it is not itself stopped
            over = grace + KILL_WAIT_S + 2 * BEAT_S + (2 * GPU_WAIT_S if holdings.gpus else 0)
            wait_until(lambda: not lock_is_held(job), over)
    # Whatever its supervisor left, or all of it when that is dead or stuck.
    survivors = end_all(find, 0.0 if lock_is_held(job) else grace, lambda: None)
    if lock_is_held(job) and not wait_until(lambda: not lock_is_held(job), 2 * BEAT_S):
        send(pid, signal.SIGKILL, int(supervisor.get("start_ticks") or 0))
        if not wait_until(lambda: not lock_is_held(job), KILL_WAIT_S):
            survivors.append(dict(describe(pid), role="supervisor"))
        survivors += end_all(find, 0.0, lambda: None)
    return [dict(row, ours=True) for row in survivors]


def _ask_to_stop(job: str, spec: JSON, supervisor: JSON, grace_s: float) -> None:
    number = signal.SIGUSR1  # look into ctl/ now
    if _owner(job, spec).get("attempt") != spec.get("attempt"):
        number = signal.SIGTERM  # it no longer owns its task, and hears no requests
    try:
        request = {"generation": spec.get("generation"), "grace_s": grace_s, "at": utc()}
        publish(os.path.join(job, "ctl", "stop"), to_bytes(request))
    except OSError:
        number = signal.SIGTERM  # no room for a request: the signal says the same
    send(int(supervisor.get("pid") or 0), number, int(supervisor.get("start_ticks") or 0))


def _owner(job: str, spec: JSON) -> JSON:
    """The attempt that owns the task of this one."""
    workspace = os.path.dirname(os.path.dirname(job))
    path = os.path.join(workspace, "tasks", str(spec.get("task")), "current")
    return read_json(path)[0] or spec


def check_generation(request: JSON, workspace: str, spec: JSON) -> None:
    """Only whoever knows the current owner of the task may end it or give it time."""
    asked = request.get("generation")
    if asked is None or not spec:
        return
    current = _owner(job_path(workspace, spec.get("attempt")), spec).get("generation")
    if not asked == current == spec.get("generation"):
        raise Refused(
            "stale_generation",
            "attempt {} has generation {}; the task is at {}; this request is for {}".format(
                spec.get("attempt"), spec.get("generation"), current, asked
            ),
            attempt=spec.get("attempt"), generation=current,
        )  # fmt: skip


def verb_extend(request: JSON, workspace: str) -> JSON:
    """Another time limit, counted from the start; None takes the limit away."""
    attempt = checked_name(request.get("attempt"), "attempt")
    job = job_path(workspace, attempt)
    spec = read_json(os.path.join(job, "spec.json"))[0] or {}
    check_generation(request, workspace, spec)
    if not lock_is_held(job):
        found = status(workspace, attempt, identity())
        raise Refused("not_running", f"attempt {attempt} is {found['state']}: {found['reason']}")
    name, limit = os.urandom(8).hex(), request.get("time_limit_s")
    wanted = {"id": name, "generation": spec.get("generation"), "time_limit_s": limit, "at": utc()}
    publish(os.path.join(job, "ctl", "extend"), to_bytes(wanted))
    supervisor = (read_json(os.path.join(job, "started"))[0] or {}).get("supervisor") or {}
    pid, ticks = int(supervisor.get("pid") or 0), int(supervisor.get("start_ticks") or 0)
    send(pid, signal.SIGUSR1, ticks)
    answer = os.path.join(job, "ctl", "extended")
    if not wait_until(lambda: (read_json(answer)[0] or {}).get("id") == name, ANSWER_WAIT_S):
        raise Refused("unanswered", f"the supervisor of {attempt} has not taken the new limit")
    return {"time_limit_s": limit}
