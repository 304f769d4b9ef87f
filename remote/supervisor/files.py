"""Files that appear whole: written aside, synced, renamed; records with room taken beforehand."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.supervisor.base import JSON

RECORD_BYTES = 16384  # room reserved for a record, so that a full disk cannot lose a result


def sync_dir(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
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


def read_json(path: str) -> tuple[JSON | None, str]:
    """The object in a file, or None and why: "absent", or what is wrong with it."""
    try:
        with open(path, "rb") as file:
            raw = file.read(4 << 20)
    except FileNotFoundError:
        return None, "absent"
    except OSError as error:
        return None, f"unreadable: {error.strerror}"
    if not raw.strip():
        return None, "empty"
    try:
        value = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return None, f"not JSON: {error}"
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


def disk(path: str) -> JSON:
    try:
        info = os.statvfs(path)
    except OSError as error:
        return {"error": error.strerror}
    return {
        "total_bytes": info.f_blocks * info.f_frsize, "free_bytes": info.f_bavail * info.f_frsize,
        "free_inodes": info.f_favail,
    }  # fmt: skip


def free_bytes(path: str) -> int | None:
    """Free space where `path` is or would be created."""
    while not os.path.exists(path) and path not in ("/", ""):
        path = os.path.dirname(path)
    return disk(path or "/").get("free_bytes")


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
