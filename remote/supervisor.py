"""The job protocol on the host: one file, standard library only, Python 3.8 or newer.

Called as `python3 FILE VERB` with one JSON request on stdin; the answer is one JSON object between
the two sentinels that the request names, so that nothing a login shell prints can be taken for it.
What is true about a job is its directory, the flock its supervisor holds, and the identity of the
machine. Time decides nothing: a silent job is a running job until the kernel says otherwise.

    <root>/<workspace>/jobs/<attempt>/   spec.json sup.py lock started ident.json beat ctl/
                                         out.log err.log progress.jsonl out.json exit.json
    <root>/<workspace>/tasks/<task>/current   the attempt and generation that own the task
    <root>/<workspace>/resources/<name>       the attempt that owns a port
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Set, Tuple

JSON = Dict[str, Any]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
STREAMS = {"out": "out.log", "err": "err.log", "progress": "progress.jsonl"}
RECORD_BYTES = 16384  # room reserved for a record, so that a full disk cannot lose a result
READY_WAIT_S = 20.0
FENCE_WAIT_S = 60.0
KILL_WAIT_S = 5.0
LEFTOVER_GRACE_S = 5.0
BEAT_S = 1.0
LOG_HEAD = 16 << 20
LOG_TAIL = 48 << 20
READ_LIMIT = 8 << 20

LOGIN = {"umask": 0o022}  # what the account has; job directories are for it alone
INJECT: JSON = {}  # faults that a test asks for: facts_root, crash_at, log_head, log_tail


class Refused(Exception):
    """A request that must not be carried out; becomes the answer."""

    def __init__(self, error: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.answer: JSON = dict(details, ok=False, error=error, message=message)


def crash_point(name: str) -> None:
    """Die here, as by kill -9, when a test asked for it."""
    if INJECT.get("crash_at") == name:
        os.kill(os.getpid(), signal.SIGKILL)


def utc() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03d+00:00" % (now % 1 * 1000)


# --- files -------------------------------------------------------------------------------------


def sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_new(path: str, data: bytes, mode: int = 0o600) -> None:
    """Create a file that must not exist, and get it onto the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def aside(path: str) -> str:
    return "%s.%d.%s.tmp" % (path, os.getpid(), os.urandom(4).hex())


def publish(path: str, data: bytes, mode: int = 0o600) -> None:
    """Put a whole file in place: a reader sees the old one or the new one."""
    temporary = aside(path)
    try:
        write_new(temporary, data, mode)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_dir(os.path.dirname(path))


def publish_once(path: str, data: bytes) -> bool:
    """Put a whole file in place unless one is there; True for the one caller who did."""
    temporary = aside(path)
    try:
        write_new(temporary, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            # No hard links here. Exclusive creation still has one winner; only a crash in the
            # next line leaves it without content, which readers take as "by a supervisor".
            try:
                write_new(path, data)
            except FileExistsError:
                return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    sync_dir(os.path.dirname(path))
    return True


def to_bytes(record: JSON) -> bytes:
    return json.dumps(record, sort_keys=True).encode("ascii")


def read_json(path: str) -> Tuple[Optional[JSON], str]:
    """The object in a file, or None and why: "absent", or what is wrong with it."""
    try:
        with open(path, "rb") as file:
            raw = file.read(4 << 20)
    except FileNotFoundError:
        return None, "absent"
    except OSError as error:
        return None, "unreadable: %s" % error.strerror
    if not raw.strip():
        return None, "empty"
    try:
        value = json.loads(raw.decode("utf-8"))
    except ValueError as error:
        return None, "not JSON: %s" % error
    if not isinstance(value, dict):
        return None, "not a JSON object"
    return value, ""


def make_dirs(path: str) -> None:
    os.makedirs(path, mode=0o700, exist_ok=True)


def file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class Record:
    """A JSON file whose room is taken beforehand, so that it can be written on a full disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.temporary = path + ".next"
        self.fd = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        write_all(self.fd, b" " * RECORD_BYTES)
        os.fsync(self.fd)

    def draft(self, record: JSON) -> None:
        """Write the content without showing it under its name."""
        data = to_bytes(record)
        if len(data) > RECORD_BYTES:
            data = to_bytes(dict(record, evidence={"dropped": "the evidence was too long"}))
        os.pwrite(self.fd, data.ljust(RECORD_BYTES), 0)
        os.fsync(self.fd)

    def show(self, record: JSON) -> None:
        self.draft(record)
        os.rename(self.temporary, self.path)
        sync_dir(os.path.dirname(self.path))


# --- locks -------------------------------------------------------------------------------------


@contextlib.contextmanager
def fence(workspace: str) -> Iterator[None]:
    """Alone in deciding who owns tasks and resources of this workspace."""
    make_dirs(workspace)
    fd = os.open(
        os.path.join(workspace, "fence.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    try:
        if not take_lock(fd, FENCE_WAIT_S):
            raise Refused("busy", "another launch holds fence.lock of this workspace")
        yield
    finally:
        os.close(fd)


def take_lock(fd: int, wait_s: float, give_up: Callable[[], bool] = lambda: False) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if give_up() or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def lock_is_held(job: str) -> bool:
    """Whether a supervisor lives. Askers share the lock: none takes another for one."""
    try:
        fd = os.open(os.path.join(job, "lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


# --- identity and processes --------------------------------------------------------------------


def fact(path: str) -> str:
    """The content of a small system file; a test's facts_root takes precedence."""
    for root in (INJECT.get("facts_root"), "/"):
        if root:
            where = os.path.join(str(root), path)
            with contextlib.suppress(OSError), open(where, "rb") as file:
                return file.read().decode("utf-8", "replace").strip()
    return ""


def stat_fields(pid: int) -> List[str]:
    """Fields of /proc/PID/stat from the state on (index 0 = field 3); [] when there is none."""
    text = fact("proc/1/stat") if pid == 1 else ""
    if not text:
        try:
            with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            return []
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int:
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def identity() -> JSON:
    return {
        "boot_id": fact("proc/sys/kernel/random/boot_id"),
        "machine_id": fact("etc/machine-id"),
        "pid1_start": str(start_ticks(1)),
        "hostname": os.uname().nodename,
    }


def lost_by(then: JSON, now: JSON) -> str:
    """How the machine changed since: "", "lost_reboot" or "lost_rebuilt"."""
    if then.get("machine_id") != now["machine_id"]:
        return "lost_rebuilt"
    if then.get("boot_id") != now["boot_id"] or then.get("pid1_start") != now["pid1_start"]:
        return "lost_reboot"
    return ""


def process_ids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environ_of(pid: int) -> Set[bytes]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:
        return set()


def command_of(pid: int) -> str:
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def describe(pid: int) -> JSON:
    # The name only: a command line may carry what its owner should not have put there.
    fields = stat_fields(pid)
    return {
        "pid": pid,
        "comm": command_of(pid),
        "state": fields[0] if fields else "gone",
        "start_ticks": int(fields[19]) if len(fields) > 19 else 0,
    }


def is_live(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in ("Z", "X", "x")


def descendants(pid: int) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for other in process_ids():
        fields = stat_fields(other)
        if len(fields) > 1:
            children.setdefault(int(fields[1]), []).append(other)
    found: Set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def marked(marks: Dict[bytes, str]) -> Dict[str, List[int]]:
    """Live processes by the mark (an environment entry) that they carry, in one walk of /proc."""
    found: Dict[str, List[int]] = {}
    for pid in process_ids():
        if pid in (1, os.getpid()):
            continue
        for entry in environ_of(pid) & set(marks):
            if is_live(pid):
                found.setdefault(marks[entry], []).append(pid)
    return found


def job_mark(job: str) -> bytes:
    """What the payload's environment says even when the job directory is gone."""
    return b"RUNBOOK_JOB_DIR=" + os.fsencode(job)


def job_processes(job: str, supervisor: JSON, cookie: str) -> List[int]:
    """Every live process of a job: by its marks, and below its supervisor while that lives."""
    marks = {job_mark(job): job}
    if cookie:
        marks[b"RUNBOOK_COOKIE=" + cookie.encode()] = job
    found = set(marked(marks).get(job, []))
    pid = int(supervisor.get("pid") or 0)
    if pid > 1 and start_ticks(pid) == supervisor.get("start_ticks"):
        found |= {child for child in descendants(pid) if is_live(child)}
        found.discard(pid)
    return sorted(found - {1, os.getpid()})


def send(pid: int, number: int, ticks: int) -> None:
    """Signal one process, unless its number was given to another since it was looked at."""
    if pid <= 1 or pid == os.getpid() or start_ticks(pid) != ticks:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(leader: int, number: int) -> None:
    if leader > 1 and leader != os.getpgrp():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, number)


def end_all(find: Callable[[], List[int]], grace_s: float, tick: Callable[[], None]) -> List[JSON]:
    """TERM, grace, KILL to whatever `find` returns; the survivors, described."""
    told: Set[Tuple[int, int]] = set()
    killing = False
    pause = 0.01
    deadline = time.monotonic() + grace_s
    while True:
        pids = find()
        if not pids:
            return []
        if time.monotonic() > deadline:
            if killing:  # uninterruptible, or another user's: report, never loop
                return [describe(pid) for pid in pids]
            killing, told, deadline = True, set(), time.monotonic() + KILL_WAIT_S
        for pid in pids:
            key = (pid, start_ticks(pid))
            if key not in told:
                told.add(key)
                send(pid, signal.SIGKILL if killing else signal.SIGTERM, key[1])
        tick()
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


def listening(ports: List[int]) -> Dict[int, Set[str]]:
    """The socket inodes that listen on these ports."""
    found: Dict[int, Set[str]] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == "0A" and port in ports:
                    found.setdefault(port, set()).add(fields[9])
    return found


def port_holders(ports: List[int]) -> List[JSON]:
    """Who still listens on these ports, as far as we may see."""
    wanted = listening(ports)
    if not wanted:
        return []
    owner: Dict[str, int] = {}
    for pid in process_ids():
        with contextlib.suppress(OSError):
            for name in os.listdir("/proc/%d/fd" % pid):
                with contextlib.suppress(OSError):
                    link = os.readlink("/proc/%d/fd/%s" % (pid, name))
                    if link.startswith("socket:["):
                        owner.setdefault(link[8:-1], pid)
    found: List[JSON] = []
    for port, inodes in sorted(wanted.items()):
        pids = sorted({owner[inode] for inode in inodes if inode in owner})
        found.extend(dict(describe(pid), port=port) for pid in pids)
        if not pids:
            found.append({"port": port, "pid": None, "comm": "?", "state": "not visible to us"})
    return found


# --- reading a job -----------------------------------------------------------------------------


def checked_name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value) or value.endswith(".tmp"):
        raise Refused("usage", "%s %r is not a plain name" % (what, value))
    return value


def job_path(workspace: str, attempt: Any) -> str:
    return os.path.join(workspace, "jobs", checked_name(attempt, "attempt"))


def last_progress(job: str) -> Tuple[Optional[JSON], int]:
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
        with contextlib.suppress(ValueError):
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
        "started_at": None, "ended_at": None, "evidence": {},
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
        return dict(common, state="running", reason="its supervisor holds the lock")
    return dict(common, state="lost", **_lost(job, started, evidence, now))


def _ended(job: str, ended: JSON) -> JSON:
    keys = ("pid", "pgid", "exit_code", "signal", "cls", "started_at", "ended_at", "evidence")
    result: JSON = {key: ended.get(key) for key in keys}
    result.update(state="exited", reason=ended.get("reason") or "")
    return result


def _lost(job: str, started: JSON, evidence: JSON, now: JSON) -> JSON:
    changed = lost_by(started.get("identity") or {}, now) if started.get("identity") else ""
    evidence["identity_then"] = started.get("identity")
    if changed == "lost_rebuilt":
        return {"cls": changed, "reason": "the machine is another one than it started on"}
    if changed:
        return {"cls": changed, "reason": "the machine or container restarted since"}
    spec = read_json(os.path.join(job, "spec.json"))[0] or {}
    alive = job_processes(job, started.get("supervisor") or {}, str(spec.get("cookie") or ""))
    evidence["survivors"] = [describe(pid) for pid in alive]
    draft, _ = read_json(os.path.join(job, "exit.json.next"))
    if draft:
        evidence["unfinished_record"] = draft
    reason = "the supervisor died without a result; "
    reason += "%d of its processes live" % len(alive) if alive else "no process of it is left"
    return {"cls": "lost_supervisor_died", "reason": reason}


def is_settled(found: JSON) -> bool:
    """Proved to run no more, now or later."""
    if found["state"] in ("exited", "burned"):
        return True
    return found["state"] in ("absent", "lost") and not found["evidence"].get("survivors")


# --- verbs -------------------------------------------------------------------------------------


def verb_poll(request: JSON, workspace: str) -> JSON:
    now = identity()
    names = [checked_name(name, "attempt") for name in request.get("attempts", [])]
    return {"statuses": {name: status(workspace, name, now) for name in names}}


def packed(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def verb_read(request: JSON, workspace: str) -> JSON:
    job = job_path(workspace, request.get("attempt"))
    stream = request.get("stream")
    if stream not in STREAMS:
        raise Refused("usage", "no stream %r" % stream)
    offset = max(0, int(request.get("offset", 0)))
    limit = min(max(0, int(request.get("limit", 1 << 18))), READ_LIMIT)
    try:
        fd = os.open(os.path.join(job, STREAMS[stream]), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"data": "", "offset": 0, "size": 0, "file_id": "", "restarted": offset > 0}
    try:
        info = os.fstat(fd)
        file_id = "%d:%d" % (info.st_dev, info.st_ino)
        known = str(request.get("file_id") or file_id)
        restarted = info.st_size < offset or known != file_id
        start = 0 if restarted else offset
        dropped = read_json(os.path.join(job, "dropped.json"))[0] or {}
        first, last = dropped.get(stream) or (0, 0)
        if first <= start < last:
            start = last
        elif start < first:
            limit = min(limit, first - start)
        data = os.pread(fd, limit, start)
    finally:
        os.close(fd)
    return {
        "data": packed(data), "offset": start, "size": info.st_size,
        "file_id": file_id, "restarted": restarted,
    }  # fmt: skip


def verb_read_out(request: JSON, workspace: str) -> JSON:
    value, why = read_json(os.path.join(job_path(workspace, request.get("attempt")), "out.json"))
    return {"out": value, "why": why}


def verb_read_file(request: JSON, workspace: str) -> JSON:
    path = os.path.expanduser(str(request["path"]))
    try:
        with open(path, "rb") as file:
            data = file.read(min(int(request["limit"]), READ_LIMIT))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise Refused("unreadable", "%s: %s" % (path, error.strerror)) from error
    return {"data": packed(data), "size": size}


def verb_ship(request: JSON, workspace: str) -> JSON:
    """A directory of files under a name that holds their content hash."""
    target = os.path.join(workspace, "ship", checked_name(request.get("name"), "name"))
    if os.path.isdir(target):
        return {"path": target, "new": False}
    temporary = aside(target)
    make_dirs(temporary)
    try:
        for name, text in request["files"].items():
            path = os.path.join(temporary, name)
            if os.path.isabs(name) or ".." in name.split("/"):
                raise Refused("usage", "file name %r leaves its directory" % name)
            make_dirs(os.path.dirname(path))
            write_new(path, binascii.a2b_base64(text), 0o700)
        sync_dir(temporary)
        try:
            os.rename(temporary, target)
        except OSError:
            if not os.path.isdir(target):  # else another client shipped the same content
                raise
            return {"path": target, "new": False}
        sync_dir(os.path.dirname(target))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"path": target, "new": True}


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


def _publish_job(job: str, files: Dict[str, bytes]) -> None:
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


# --- launch ------------------------------------------------------------------------------------


def verb_launch(request: JSON, workspace: str) -> JSON:
    """Publish, claim, start: at most one start of an attempt, however often this is asked."""
    spec = request["spec"]
    attempt, task = checked_name(spec.get("attempt"), "attempt"), checked_name(spec["task"], "task")
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
                raise Refused("spec_differs", "attempt %s was published otherwise" % attempt)
        if status(workspace, attempt, now)["state"] in ("absent", "published"):
            _claim(workspace, spec, task, now)
            crash_point("launch.claimed")
            if not os.path.isdir(job):
                record = dict(spec, cookie=os.urandom(16).hex())
                with open(os.path.abspath(__file__), "rb") as file:
                    own_code = file.read()
                _publish_job(
                    job,
                    {
                        "spec.json": to_bytes(record), "sup.py": own_code, "lock": b"",
                        "tombstone": b"published %s\n" % utc().encode(),
                    },
                )  # fmt: skip
            crash_point("launch.published")
            error = _start(job, request.get("secrets") or {})
            crash_point("launch.started")
        found = status(workspace, attempt, now)
    if found["state"] == "published":
        raise Refused("not_started", error or "the supervisor did not start", status=found)
    return {"status": found}


def _sweep_unpublished(jobs: str) -> None:
    """Remove what killed launchers were building. Under the fence, so nobody is building now."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(jobs):
            if name.endswith(".tmp"):
                shutil.rmtree(os.path.join(jobs, name), ignore_errors=True)


def _claim(workspace: str, spec: JSON, task: str, now: JSON) -> None:
    """Make the attempt the owner of its task and ports, or say who is."""
    attempt, generation = spec["attempt"], int(spec["generation"])
    folder = os.path.join(workspace, "tasks", task)
    make_dirs(folder)
    path = os.path.join(folder, "current")
    owner, why = read_json(path)
    if owner is None and why != "absent":
        raise Refused("fence_unreadable", "%s is %s" % (path, why))
    owner = owner or {}
    if owner and owner.get("attempt") != attempt:
        if generation <= int(owner["generation"]):
            raise Refused(
                "stale_generation",
                "task %s is at generation %s on this host" % (task, owner["generation"]),
                attempt=owner["attempt"], generation=owner["generation"],
            )  # fmt: skip
        _burn_unborn(workspace, owner, now)
        _refuse_live(workspace, owner, now, "task %s" % task)
    claim = to_bytes({"attempt": attempt, "generation": generation, "task": task, "at": utc()})
    resources = os.path.join(workspace, "resources")
    make_dirs(resources)
    names = ["port-%d" % int(port) for port in spec.get("ports") or []]
    for name in names:
        holder = read_json(os.path.join(resources, name))[0] or {}
        if holder and holder.get("attempt") != attempt:
            _refuse_live(workspace, holder, now, name)
    for name in names:
        publish(os.path.join(resources, name), claim)
    if owner.get("attempt") != attempt:
        publish(path, claim)


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
            "%s belongs to attempt %s (%s)" % (what, owner["attempt"], found["state"]),
            attempt=owner["attempt"], generation=owner["generation"], what=what, status=found,
        )  # fmt: skip


def _start(job: str, secrets: JSON) -> str:
    """Start a supervisor and wait until it says how it went; "" or what it said."""
    ready, theirs = os.pipe()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RUNBOOK_")}
    environment["RUNBOOK_INJECT"] = json.dumps(INJECT)
    environment["RUNBOOK_UMASK"] = "%o" % LOGIN["umask"]
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.join(job, "sup.py"), "supervise", job,
             str(theirs)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, pass_fds=(theirs,), cwd="/", env=environment,
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
                raise Refused("unknown", "the supervisor said nothing for %.0f s" % READY_WAIT_S)
            piece = os.read(ready, 4096)
            if not piece:
                break
            said += piece
    finally:
        os.close(ready)
    return said.decode("utf-8", "replace").strip() or "the supervisor died at its start"


# --- the supervisor ----------------------------------------------------------------------------


class Supervisor:
    """One payload, from its start to its record."""

    def __init__(self, job: str, ready: int) -> None:
        self.job = job
        self.ready = ready
        self.spec: JSON = {}
        self.cookie = ""
        self.payload = 0
        self.wait_status: Optional[int] = None
        self.began = time.monotonic()
        self.started_at = ""
        self.beats = 0
        self.next_beat = 0.0
        self.limit: Optional[float] = None
        self.cause = ""  # why we end it ourselves: "stopped" or "time_limit"
        self.grace = 20.0
        self.told = False  # SIGTERM came for us
        self.dropped: Dict[str, Tuple[int, int]] = {}
        self.orphans = 0
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
            return self.say("spec.json is %s" % why)
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
            self.dropped_fd = os.open(self.path("dropped.json"), flags, 0o600)
            os.pwrite(self.dropped_fd, b"{}".ljust(512), 0)
            self.beat_fd = os.open(self.path("beat"), flags, 0o600)
            os.pwrite(self.beat_fd, b"%020d\n" % 0, 0)
            mark = {"by": "supervisor", "at": utc(), "identity": identity(), "supervisor": self.own}
            if not publish_once(self.path("started"), to_bytes(mark)):
                return self.say("")
        except OSError as error:
            return self.say("cannot prepare the job directory: %s" % error.strerror)
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
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGUSR2):
            # Not SIG_IGN, which the payload would inherit.
            signal.signal(number, lambda *_: None)

    def _supervise(self, secrets: JSON) -> None:
        become_subreaper()
        self.oom_before = oom_counters()
        problem = self._spawn(secrets)
        secrets.clear()
        if problem:
            self.record.show(self._result("never_started", None, None, problem, {}))
            return self.say(problem)
        crash_point("supervise.spawned")
        self.ident.show(
            {
                "attempt": self.spec["attempt"], "generation": self.spec["generation"],
                "identity": identity(), "supervisor": self.own, "cookie": self.cookie,
                "pid": self.payload, "pgid": self.payload, "started_at": self.started_at,
                "start_ticks": start_ticks(self.payload),
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
        if self.limit is not None:
            until = min(until, self.limit)
        return min(max(until - time.monotonic(), 0.0), BEAT_S)

    def _spawn(self, secrets: JSON) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RUNBOOK_")}
        environment.update({str(k): str(v) for k, v in (self.spec.get("env") or {}).items()})
        environment.update({str(k): str(v) for k, v in secrets.items()})
        environment.update(
            RUNBOOK_ATTEMPT=self.spec["attempt"], RUNBOOK_TASK=self.spec["task"],
            RUNBOOK_JOB_DIR=self.job, RUNBOOK_PROGRESS=self.path("progress.jsonl"),
            RUNBOOK_OUT=self.path("out.json"), RUNBOOK_COOKIE=self.cookie,
        )  # fmt: skip
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            out = os.open(self.path("out.log"), flags, 0o600)
            err = os.open(self.path("err.log"), flags, 0o600)
        except OSError as error:
            return "cannot open the logs: %s" % error.strerror
        self.started_at, self.began = utc(), time.monotonic()
        limit = self.spec.get("time_limit_s")
        self.limit = self.began + float(limit) if limit else None
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
            return "cannot start %s: %s" % (self.spec["argv"][:1], error)
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
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.payload:
                self.wait_status = code
            else:
                self.orphans += 1
        now = time.monotonic()
        if now >= self.next_beat:
            self.beats, self.next_beat = self.beats + 1, now + BEAT_S
            with contextlib.suppress(OSError):
                os.pwrite(self.beat_fd, b"%020d\n" % self.beats, 0)
            for stream in ("out", "err"):
                with contextlib.suppress(OSError):
                    self._bound(stream)

    def _bound(self, stream: str) -> None:
        """Give the middle of a long log back to the disk. Offsets stay: it becomes a hole."""
        head = int(INJECT.get("log_head", LOG_HEAD))
        tail = int(INJECT.get("log_tail", LOG_TAIL))
        path = self.path(STREAMS[stream])
        size = file_size(path)
        first, last = self.dropped.get(stream, (head, head))
        if size - last <= 2 * tail:
            return
        end = (size - tail) // 4096 * 4096
        first = -(-first // 4096) * 4096
        if end <= first:
            return
        self.dropped[stream] = (first, end)
        # Said before it is done: a reader may miss bytes that are still there, never read zeros.
        # In place, for on a full disk this is what makes room.
        os.pwrite(self.dropped_fd, to_bytes(dict(self.dropped)).ljust(512), 0)
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            punch_hole(fd, first, end - first)
        finally:
            os.close(fd)

    def _ask(self) -> None:
        """Is there a reason to end the payload?"""
        if self.limit is not None and time.monotonic() >= self.limit:
            self.cause = "time_limit"
        elif self.told:
            self.cause = "stopped"
        request, _ = read_json(self.path("ctl/stop"))
        if request and request.get("generation") == self.spec["generation"] and self._is_current():
            self.cause = "stopped"
            self.grace = float(request.get("grace_s", self.grace))

    def _is_current(self) -> bool:
        workspace = os.path.dirname(os.path.dirname(self.job))
        path = os.path.join(workspace, "tasks", self.spec["task"], "current")
        current, why = read_json(path)
        if current is None:
            return why == "absent"
        return bool(current.get("attempt") == self.spec["attempt"])

    def _own_processes(self) -> List[int]:
        pids = job_processes(self.job, self.own, self.cookie)
        return [pid for pid in pids if is_live(pid)]

    def _finish(self) -> None:
        survivors: List[JSON] = []
        evidence: JSON = {}
        if self.cause:
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
            left = self._own_processes()
            if left:
                evidence["leftovers"] = [describe(pid) for pid in left][:20]
                grace = min(self.grace, LEFTOVER_GRACE_S)
                survivors = end_all(self._own_processes, grace, self._tick)
        if survivors:
            evidence["survivors"] = survivors[:20]
        if self.told:
            evidence["supervisor_signal"] = int(signal.SIGTERM)
        if self.dropped:
            evidence["log_dropped"] = {k: list(v) for k, v in self.dropped.items()}
        evidence["orphans_reaped"] = self.orphans
        code, number = (None, None)
        if self.wait_status is not None:
            code, number = split_status(self.wait_status)
        cls, reason = self._classify(code, number, evidence)
        self.record.show(self._result(cls, code, number, reason, evidence))
        crash_point("supervise.recorded")

    def _classify(
        self, code: Optional[int], number: Optional[int], evidence: JSON
    ) -> Tuple[str, str]:
        if self.cause == "time_limit":
            return "time_limit", "it ran past its limit of %s s" % self.spec["time_limit_s"]
        if self.cause:
            return "stopped", "it was asked to stop"
        if code == 0:
            return "ok", ""
        oom = oom_evidence(self.oom_before, oom_counters())
        # Our own group's counter is proof. The machine's may count a neighbour, so it needs a kill.
        grown, killed = oom["counters_grown"], number == signal.SIGKILL or code == 137
        if "cgroup" in grown or ("machine" in grown and killed):
            evidence["oom"] = oom
            return "oom", "the kernel killed a process for memory while it ran"
        tail = log_tail(self.path("err.log")) + log_tail(self.path("out.log"))
        free = free_bytes(self.job)
        if number == signal.SIGBUS or b"No space left on device" in tail or free == 0:
            evidence["disk"] = {
                "free_at_job_dir": free, "sigbus": number == signal.SIGBUS,
                "message_in_log": b"No space left on device" in tail,
            }  # fmt: skip
            return "disk_full", "it ended while a file system had no space left"
        if number is not None:
            if number == signal.SIGKILL:
                oom["note"] = "SIGKILL from outside; no counter proves that memory was the cause"
                evidence["oom_suspected"] = oom
            return "signal", "signal %d ended it" % number
        return "exit", "it exited with %s" % code

    def _result(
        self, cls: str, code: Optional[int], number: Optional[int], reason: str, evidence: JSON
    ) -> JSON:
        return {
            "v": 1, "attempt": self.spec["attempt"], "generation": self.spec["generation"],
            "cls": cls, "exit_code": code, "signal": number, "reason": reason,
            "pid": self.payload or None, "pgid": self.payload or None,
            "started_at": self.started_at or None, "ended_at": utc(),
            "duration_s": round(time.monotonic() - self.began, 3), "evidence": evidence,
        }  # fmt: skip


def split_status(wait_status: int) -> Tuple[Optional[int], Optional[int]]:
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None


def become_subreaper() -> None:
    """Orphans of the payload become our children, not those of PID 1 (Linux 3.4)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def punch_hole(fd: int, start: int, length: int) -> None:
    """FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE; file systems without it keep the bytes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).fallocate(
            fd, 3, ctypes.c_int64(start), ctypes.c_int64(length)
        )


def oom_counters() -> JSON:
    """How often the kernel has killed for memory, as far as this process can see."""
    found: JSON = {}
    for line in fact("proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            names = ["sys/fs/cgroup%s/memory.events" % path, "sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            names = ["sys/fs/cgroup/memory%s/memory.oom_control" % path,
                     "sys/fs/cgroup/memory/memory.oom_control"]  # fmt: skip
        else:
            continue
        for name in names:
            match = re.search(r"^oom_kill (\d+)$", fact(name), re.MULTILINE)
            if match:
                found["cgroup"] = int(match.group(1))
                break
    match = re.search(r"^oom_kill (\d+)$", fact("proc/vmstat"), re.MULTILINE)
    if match:
        found["machine"] = int(match.group(1))
    match = re.search(r"^MemAvailable:\s+(\d+) kB", fact("proc/meminfo"), re.MULTILINE)
    if match:
        found["mem_available_bytes"] = int(match.group(1)) * 1024
    return found


def oom_evidence(before: JSON, after: JSON) -> JSON:
    grown = [
        name for name in ("cgroup", "machine")
        if name in before and name in after and after[name] > before[name]
    ]  # fmt: skip
    return {"counters_grown": grown, "before": before, "after": after}


def log_tail(path: str) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
        return file.read(8192)
    return b""


def free_bytes(path: str) -> int:
    try:
        info = os.statvfs(path)
    except OSError:
        return -1
    return info.f_bavail * info.f_frsize


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


# --- stop --------------------------------------------------------------------------------------


def verb_stop(request: JSON, workspace: str) -> JSON:
    """End a job and prove it: no process of it, and its ports free."""
    attempt = checked_name(request.get("attempt"), "attempt")
    job = job_path(workspace, attempt)
    grace = float(request.get("grace_s", 20.0))
    spec = read_json(os.path.join(job, "spec.json"))[0] or {}
    asked = request.get("generation")
    if asked is not None and spec and asked != spec.get("generation"):
        raise Refused("stale_generation", "attempt %s is of another generation" % attempt)
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

    def find() -> List[int]:
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


def wait_until(true: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- entry -------------------------------------------------------------------------------------

VERBS: Dict[str, Callable[[JSON, str], JSON]] = {
    "launch": verb_launch, "poll": verb_poll, "read": verb_read, "read_out": verb_read_out,
    "read_file": verb_read_file, "ship": verb_ship, "burn": verb_burn, "stop": verb_stop,
}  # fmt: skip


def answer(verb: str, request: JSON) -> JSON:
    # One spelling of the path: processes are found by it.
    root = os.path.realpath(os.path.expanduser(str(request["root"])))
    workspace = os.path.join(root, checked_name(request.get("workspace"), "workspace"))
    try:
        result = dict(VERBS[verb](request, workspace), ok=True)
    except Refused as refused:
        result = refused.answer
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = error.filename or workspace
        result = {
            "ok": False, "error": "disk_full" if full else "os_error",
            "message": "%s: %s" % (where, error.strerror or error),
        }  # fmt: skip
    result["identity"] = identity()
    return result


def too_late(*_: Any) -> NoReturn:
    raise SystemExit("the request ran past its limit on the host")


def main(argv: List[str]) -> int:
    if len(argv) == 4 and argv[1] == "supervise":
        INJECT.update(json.loads(os.environ.get("RUNBOOK_INJECT") or "{}"))
        Supervisor(argv[2], int(argv[3])).run()
        return 0
    if len(argv) != 2 or argv[1] not in VERBS:
        print("usage: supervisor.py %s < request.json" % "|".join(sorted(VERBS)), file=sys.stderr)
        return 2
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    INJECT.update(request.get("inject") or {})
    LOGIN["umask"] = os.umask(0o077)
    # A client that went away must not leave us running: the limit is ours, not the connection's.
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(max(1, int(request.get("limit_s", 600))))
    result = answer(argv[1], request)
    sys.stdout.write("%s\n%s\n%s\n" % (request["begin"], json.dumps(result), request["end"]))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
