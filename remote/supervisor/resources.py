"""What a machine has once: a GPU, a port, a name in shared memory. One attempt holds it at a time.

Resources belong to the machine, not to a workspace, so their claims lie outside of all roots, in a
folder that every workspace and user of this boot finds: a claim is a file that its holder's
supervisor keeps locked. The kernel drops the lock when the supervisor dies, but a payload may
outlive it: a claim that is not locked passes on only when its holder is proved to have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re

from remote.supervisor.base import INJECT, JSON, Refused, utc
from remote.supervisor.identity import fact, identity
from remote.supervisor.locks import take_lock
from remote.supervisor.status import is_settled, status

# Sticky, for everyone, and not swept by age where there is a choice. The first is emptied at boot.
PLACES = ("run/lock", "var/tmp", "tmp")
# One spelling each, or two names would be two claims on one thing.
NUMBER = "(?:0|[1-9][0-9]{0,4})"
CLAIM = re.compile(f"gpu:{NUMBER}|port:{NUMBER}|shm:[A-Za-z0-9][A-Za-z0-9._-]{{0,127}}")
CLAIM_BYTES = 4096
GLANCE_S = 0.3
TURN_S = 5.0  # for another launch to finish looking


def machine_folder() -> str:
    """Where claims of this boot lie. Another boot, or a container of its own, has another one."""
    boot = re.sub(r"[^0-9A-Za-z]", "", fact("proc/sys/kernel/random/boot_id"))[:16] or "boot"
    for place in [INJECT.get("machine_root"), *("/" + place for place in PLACES)]:
        with contextlib.suppress(OSError):
            if place and os.stat(place).st_mode & 0o1002 == 0o1002 and os.access(place, os.W_OK):
                return os.path.join(place, "runbook-" + boot)
    raise Refused("no_place", "no folder of this machine is open to all its users: /var/tmp?")


def names_of(spec: JSON) -> list[str]:
    """The resources a spec asks for; its ports are some of them."""
    names = {"port:%d" % int(port) for port in spec.get("ports") or []}
    for name in spec.get("resources") or []:
        if not isinstance(name, str) or not CLAIM.fullmatch(name):
            raise Refused("usage", f"{name!r} is no resource: write gpu:0, port:30000 or shm:NAME")
        names.add(name)
    return sorted(names)


def claim(workspace: str, job: str, spec: JSON) -> dict[str, int]:
    """Take what the spec asks for: open files by resource, each locked and naming this attempt."""
    held: dict[str, int] = {}
    try:
        for name in names_of(spec):  # in one order, so that two launches cannot block each other
            held[name] = _take(name, workspace, job, spec)
    except BaseException:
        release(held)
        raise
    return held


def close(held: dict[str, int]) -> None:
    for fd in held.values():
        os.close(fd)


def open_shared(path: str) -> int:
    """A file of the machine folder, which every user of the machine may open."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            os.chmod(folder, 0o1777)  # noqa: S103 - all users of the machine share it
    if os.path.islink(folder):
        raise Refused("no_place", f"{folder} is a link; remove it")
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, 0o666)
    with contextlib.suppress(PermissionError):  # another user made it meanwhile, and opened it
        os.fchmod(fd, 0o666)
    return fd


def _take(name: str, workspace: str, job: str, spec: JSON) -> int:
    path = os.path.join(machine_folder(), name)
    while True:
        fd = open_shared(path)
        try:
            # Others look for a moment, and write who they are after that: a name is believed late.
            if not take_lock(fd, GLANCE_S) and not take_lock(
                fd, TURN_S, lambda fd=fd: _belongs_to_another(fd, job)  # type: ignore[misc]
            ):  # fmt: skip
                record = _read(fd)
                if record.get("job") == job:
                    raise Refused("busy", f"another launch of this attempt holds {name}")
                _refuse(name, record, "its supervisor lives")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(fd)):
                    record = _read(fd)
                    _prove_ended(name, record, workspace, job)
                    _write(fd, _claim_of(name, record, job, spec))
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was removed while we waited: look again


def _claim_of(name: str, before: JSON, job: str, spec: JSON) -> JSON:
    return {
        "resource": name, "generation": int(before.get("generation", 0)) + 1, "state": "held",
        "attempt": spec["attempt"], "attempt_generation": spec["generation"], "task": spec["task"],
        "job": job, "uid": os.getuid(), "pid_space": pid_space(), "at": utc(),
    }  # fmt: skip


def pid_space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read(fd: int) -> JSON:
    raw = os.pread(fd, CLAIM_BYTES, 0).strip(b" \0\n")
    if not raw:
        return {}
    try:
        record = json.loads(raw.decode("utf-8"))
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {"state": "unreadable"}


def _write(fd: int, record: JSON) -> None:
    # In place and one page long: whoever may open it may pass it on, which a rename in a sticky
    # folder would not allow. There is no boot after which it would be read.
    os.pwrite(fd, json.dumps(record, sort_keys=True).encode("ascii").ljust(CLAIM_BYTES), 0)


def _belongs_to_another(fd: int, job: str) -> bool:
    record = _read(fd)
    return record.get("state") == "held" and record.get("job") != job


def _prove_ended(name: str, record: JSON, workspace: str, job: str) -> None:
    """Return when the last holder is gone for certain; nobody else has the lock now."""
    if record.get("state") == "unreadable":
        path = os.path.join(machine_folder(), name)
        raise Refused("fence_unreadable", f"{path} is damaged; remove it if nothing uses {name}")
    if record.get("state") != "held" or record.get("job") == job:
        return
    if record.get("pid_space") != pid_space():
        _refuse(name, record, "it is of another container, whose processes we cannot see")
    if os.getuid() not in (0, record.get("uid")):
        _refuse(name, record, "it is another user's, whose processes we cannot see")
    jobs = os.path.dirname(str(record["job"]))
    found = status(os.path.dirname(jobs), str(record["attempt"]), identity())
    # A published one would have to claim again before it could start.
    if found["state"] != "published" and not is_settled(found):
        _refuse(name, record, f"it is {found['state']}: {found['reason']}")


def _refuse(name: str, record: JSON, why: str) -> None:
    holder = {key: record.get(key) for key in ("attempt", "task", "job", "uid", "at")}
    raise Refused(
        "fence_held", f"{name} belongs to attempt {record.get('attempt')} ({why})",
        attempt=record.get("attempt") or "", generation=record.get("attempt_generation") or 0,
        what=name, holder=dict(holder, why=why),
    )  # fmt: skip


def touch(held: dict[str, int]) -> None:
    """Keeps claims young: some machines sweep old files out of folders for temporary ones."""
    for fd in held.values():
        with contextlib.suppress(OSError):
            os.utime(fd)


def release(held: dict[str, int]) -> None:
    """Say that nothing of the holder is left. Without it the next one has to find that out."""
    for fd in held.values():
        with contextlib.suppress(OSError):
            record = _read(fd)
            _write(fd, dict(record, state="free", freed_at=utc()))
        os.close(fd)


def release_of(job: str, spec: JSON) -> None:
    """The same for a job whose supervisor died; it has been proved that nothing of it is left."""
    for name in names_of(spec):
        with contextlib.suppress(OSError, Refused):
            fd = os.open(
                os.path.join(machine_folder(), name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            )
            if take_lock(fd, 0.0) and _read(fd).get("job") == job:
                release({name: fd})
            else:
                os.close(fd)


def verb_resources(request: JSON, workspace: str) -> JSON:
    """Every claim on this machine, whoever holds it."""
    found: list[JSON] = []
    with contextlib.suppress(FileNotFoundError):
        folder = machine_folder()
        for name in sorted(os.listdir(folder)):
            if not CLAIM.fullmatch(name):
                continue
            fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                record = _read(fd)
                if record.get("state") == "held":
                    found.append(dict(record, locked=_is_locked(fd)))
            finally:
                os.close(fd)
    return {"resources": found}


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
