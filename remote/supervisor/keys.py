"""Keys for a running job: the file by which it gets new ones, and from when to when they hold.

The first come with the launch, in the environment. The file is in the job's directory, readable by
its owner alone, put in place whole, and removed when the job has its record.
"""

from __future__ import annotations

import contextlib
import os

from remote.supervisor.base import JSON, Refused, checked_name, crash_point, job_path
from remote.supervisor.files import publish, read_json, to_bytes
from remote.supervisor.locks import lock_is_held

SPAN = "RUNBOOK_KEYS_SPAN"
"""Begin and end, in the environment of a job."""


def keys_path(job: str) -> str:
    return os.path.join(job, "ctl", "keys")


def span_of(secrets: JSON) -> JSON | None:
    """When the keys that a launch brings were made, and when they end."""
    words = str(secrets.get(SPAN) or "").split()
    if len(words) != 2:
        return None
    return {"since": float(words[0]), "end": float(words[1])}


def span_now(job: str, first: JSON | None) -> JSON | None:
    """That of the newest keys, never the keys; `first` is that of the launch."""
    later, _ = read_json(keys_path(job))
    if first is None or later is None:
        return first
    return {"since": later.get("since"), "end": later.get("end")}


def stamp_of(path: str) -> tuple[int, int] | None:
    """Another one for each file that was put there; None without any."""
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns


def values_in(path: str) -> list[str]:
    """The keys of a file, to hide them."""
    found, _ = read_json(path)
    return [str(value) for value in ((found or {}).get("values") or {}).values()]


def remove_keys(job: str) -> None:
    """Also what a killed writer left."""
    folder = os.path.join(job, "ctl")
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name == "keys" or name.startswith("keys."):
                os.unlink(os.path.join(folder, name))


def verb_hand_keys(request: JSON, workspace: str) -> JSON:
    """New keys for a running job; only whoever knows the current owner of its task may."""
    from remote.supervisor.stop import check_generation

    attempt = checked_name(request.get("attempt"), "attempt")
    job = job_path(workspace, attempt)
    spec = read_json(os.path.join(job, "spec.json"))[0] or {}
    check_generation(request, workspace, spec)
    _refuse_ended(job, attempt)
    crash_point("keys.before")
    publish(keys_path(job), to_bytes(request["keys"]))
    crash_point("keys.after")
    try:
        _refuse_ended(job, attempt)  # its supervisor may have cleared up just before
    except Refused:
        remove_keys(job)
        raise
    return {"handed": True}


def _refuse_ended(job: str, attempt: str) -> None:
    if not lock_is_held(job) or os.path.exists(os.path.join(job, "exit.json")):
        raise Refused("not_running", f"attempt {attempt} does not run: it needs no keys")
