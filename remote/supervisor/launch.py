"""Publish, claim, start: at most one start of an attempt, however often it is asked for."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time

from remote.supervisor import resources
from remote.supervisor.base import (
    INJECT,
    JSON,
    LOGIN,
    Refused,
    checked_name,
    crash_point,
    job_path,
    utc,
)
from remote.supervisor.files import (
    aside,
    make_dirs,
    publish,
    publish_once,
    read_json,
    sync_dir,
    to_bytes,
    write_new,
)
from remote.supervisor.identity import identity
from remote.supervisor.locks import fence
from remote.supervisor.status import is_settled, status

READY_WAIT_S = 20.0


def verb_burn(request: JSON, workspace: str) -> JSON:
    """Make sure that an attempt never runs, unless it has started already."""
    attempt = checked_name(request.get("attempt"), "attempt")
    job = job_path(workspace, attempt)
    mark = to_bytes({"by": "burn", "at": utc(), "identity": identity()})
    with fence(workspace):
        if not os.path.isdir(job):
            # A launch may still be on its way: it must find the attempt burned.
            _publish_job(job, {"started": mark, "tombstone": b"burned before it was published\n"})
            return {"burned": True}
    publish_once(os.path.join(job, "started"), mark)
    started, _ = read_json(os.path.join(job, "started"))
    return {"burned": bool(started and started.get("by") == "burn")}


def _publish_job(job: str, files: dict[str, bytes]) -> None:
    """A whole directory under its name at once; never an empty one, which rename would replace."""
    make_dirs(os.path.dirname(job))
    temporary = aside(job)
    os.mkdir(temporary, 0o700)
    try:
        os.mkdir(os.path.join(temporary, "ctl"), 0o700)
        for name, data in files.items():
            write_new(os.path.join(temporary, name), data)
        sync_dir(temporary)
        crash_point("launch.before_publish")
        os.rename(temporary, job)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_dir(os.path.dirname(job))


def verb_launch(request: JSON, workspace: str) -> JSON:
    """Publish, claim, start: at most one start of an attempt, however often this is asked."""
    spec = request["spec"]
    attempt = checked_name(spec.get("attempt"), "attempt")
    spec["secret_names"] = sorted(request.get("secrets") or {})
    job = job_path(workspace, attempt)
    error = ""
    with fence(workspace):
        _sweep_unpublished(os.path.dirname(job))
        now = identity()
        if os.path.isdir(job):
            known = read_json(os.path.join(job, "spec.json"))[0] or {}
            known.pop("cookie", None)
            if known and known != spec:
                raise Refused("spec_differs", f"attempt {attempt} was published otherwise")
        if status(workspace, attempt, now)["state"] in ("absent", "published"):
            current = _may_claim(workspace, spec, now, str(request.get("by") or ""))
            held = resources.claim(workspace, job, spec)
            try:
                if current:
                    publish(*current)
                crash_point("launch.claimed")
                if not os.path.isdir(job):
                    _publish_job(job, _job_files(spec))
                crash_point("launch.published")
                error = _start(job, request.get("secrets") or {}, held)
                crash_point("launch.started")
            finally:
                resources.close(held)  # the supervisor has them open too, and so keeps the locks
        found = status(workspace, attempt, now)
    if found["state"] == "published":
        raise Refused("not_started", error or "the supervisor did not start", status=found)
    return {"status": found}


def _job_files(spec: JSON) -> dict[str, bytes]:
    with open(sys.argv[0], "rb") as file:
        own_code = file.read()
    return {
        "spec.json": to_bytes(dict(spec, cookie=os.urandom(16).hex())), "sup.py": own_code,
        "lock": b"", "tombstone": b"published %s\n" % utc().encode(),
    }  # fmt: skip


def _sweep_unpublished(jobs: str) -> None:
    """Remove what killed launchers were building. Under the fence, so nobody is building now."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(jobs):
            if name.endswith(".tmp"):
                shutil.rmtree(os.path.join(jobs, name), ignore_errors=True)


def _may_claim(workspace: str, spec: JSON, now: JSON, by: str) -> tuple[str, bytes] | None:
    """What makes the attempt the owner of its task (None: it is), or the refusal with who is."""
    attempt, generation = spec["attempt"], int(spec["generation"])
    task = checked_name(spec["task"], "task")
    folder = os.path.join(workspace, "tasks", task)
    make_dirs(folder)
    path = os.path.join(folder, "current")
    owner, why = read_json(path)
    if owner is None and why != "absent":
        raise Refused("fence_unreadable", f"{path} is {why}")
    owner = owner or {}
    if owner and owner.get("attempt") != attempt:
        if generation <= int(owner["generation"]):
            raise Refused(
                "stale_generation",
                "task {} is at generation {} on this host".format(task, owner["generation"]),
                attempt=owner["attempt"], generation=owner["generation"],
            )  # fmt: skip
        _burn_unborn(workspace, owner, now)
        _refuse_live(workspace, owner, now, f"task {task}")
    if owner.get("attempt") == attempt:
        return None
    owned = {"attempt": attempt, "generation": generation, "task": task, "at": utc(), "by": by}
    return path, to_bytes(owned)


def _burn_unborn(workspace: str, owner: JSON, now: JSON) -> None:
    """An older attempt that was published and never started makes way: whoever burns it wins."""
    older = checked_name(owner.get("attempt"), "attempt")
    if status(workspace, older, now)["state"] == "published":
        mark = {"by": "burn", "at": utc(), "identity": now, "reason": "a newer attempt came"}
        publish_once(os.path.join(job_path(workspace, older), "started"), to_bytes(mark))


def _refuse_live(workspace: str, owner: JSON, now: JSON, what: str) -> None:
    found = status(workspace, checked_name(owner.get("attempt"), "attempt"), now)
    if not is_settled(found):
        raise Refused(
            "fence_held",
            "{} belongs to attempt {} ({})".format(what, owner["attempt"], found["state"]),
            attempt=owner["attempt"], generation=owner["generation"], what=what, status=found,
        )  # fmt: skip


def _start(job: str, secrets: JSON, held: dict[str, int]) -> str:
    """Start a supervisor and wait until it says how it went; "" or what it said."""
    ready, theirs = os.pipe()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUNBOOK_")}
    environment["RUNBOOK_INJECT"] = json.dumps(INJECT)
    environment["RUNBOOK_UMASK"] = "{:o}".format(LOGIN["umask"])
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(job, "sup.py"), "supervise", job,
             str(theirs), json.dumps(held)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, pass_fds=(theirs, *held.values()), cwd="/", env=environment,
        )  # fmt: skip
    finally:
        os.close(theirs)
    try:
        assert child.stdin is not None
        crash_point("launch.spawned")
        with contextlib.suppress(BrokenPipeError):
            # A length first: half of the secrets must never start a payload.
            body = to_bytes(secrets)
            child.stdin.write(b"%d\n" % len(body) + body)
            child.stdin.close()
        said = b""
        deadline = time.monotonic() + READY_WAIT_S
        while not said.endswith(b"\n"):
            if not select.select([ready], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Refused("unknown", f"the supervisor said nothing for {READY_WAIT_S:.0f} s")
            piece = os.read(ready, 4096)
            if not piece:
                break
            said += piece
    finally:
        os.close(ready)
    return said.decode("utf-8", "replace").strip() or "the supervisor died at its start"
