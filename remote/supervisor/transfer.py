"""Receiving and giving files in blocks, each with its hash; nothing is believed for its size.

A file that arrives is written by position into `.NAME.partial` beside its place. A transfer that
was cut goes on by comparing hashes of what is there. The last step is a rename of a file that was
read back and found right, so that a name never shows half of a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
import sys
import time
from typing import TYPE_CHECKING

from remote.supervisor.base import JSON, LOGIN, Refused
from remote.supervisor.blocks import ahead, partial, read_block, stamp, write_block
from remote.supervisor.disks import room
from remote.supervisor.files import sync_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET_S = 10.0  # of one request; what is left is asked for again
IDLE_S = 600  # a block takes longer than that: nobody is there any more
MOST_FILES = 200_000


def inside(base: str, name: str) -> str:
    """The path of a file of a tree; "" is the file that was asked for itself."""
    if os.path.isabs(name) or ".." in name.split("/") or "\0" in name:
        raise Refused("usage", f"file name {name!r} leaves its directory")
    return os.path.join(base, name) if name else base


def base_of(request: JSON) -> str:
    path = os.path.expanduser(str(request["path"]))
    if not os.path.isabs(path):
        raise Refused("usage", f"{path} is not an absolute path")
    return path.rstrip("/") or "/"


def _stamp_of(path: str) -> str:
    try:
        return stamp(os.lstat(path))
    except OSError:
        return ""


# --- looking ---


def verb_list(request: JSON, workspace: str) -> JSON:
    """The files at a path; links are followed, for a model cache consists of them."""
    base = base_of(request)
    try:
        if not os.path.isdir(base):
            return {"kind": "file", "files": [_entry(base, "")], "folders": []}
        files: list[JSON] = []
        folders: list[str] = []
        for folder, below, names in os.walk(base, onerror=_refuse):
            start = os.path.relpath(folder, base)
            start = "" if start == "." else start + "/"
            for name in below:
                if os.path.islink(os.path.join(folder, name)):
                    raise Refused("usage", f"{folder}/{name} is a link to a folder")
                folders.append(start + name)
            files += [_entry(folder + "/" + name, start + name) for name in names]
            if len(files) > MOST_FILES:
                raise Refused("usage", f"{base} holds more than {MOST_FILES} files")
    except OSError as error:
        raise Refused("unreadable", f"{error.filename}: {error.strerror}") from error
    mine = [one for one in files if not _is_partial(one["path"])]
    return {"kind": "folder", "files": sorted(mine, key=_path), "folders": sorted(folders)}


def _is_partial(name: str) -> bool:
    return os.path.basename(name).startswith(".") and name.endswith(".partial")


def _path(entry: JSON) -> str:
    return str(entry["path"])


def _refuse(error: OSError) -> None:
    raise error


def _entry(path: str, name: str) -> JSON:
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise Refused("usage", f"{path} is neither a file nor a folder")
    mode = stat.S_IMODE(info.st_mode) & 0o777
    return {"path": name, "size": info.st_size, "mode": mode, "stamp": stamp(info)}


def verb_hashes(request: JSON, workspace: str) -> JSON:
    """sha256 of the blocks of some files, as many as the time allows; the last may be unfinished.

    The first file is read on from block `first`.
    """
    base, block, first = base_of(request), int(request["block"]), int(request["first"])
    deadline, found = time.monotonic() + BUDGET_S, []
    for one in request["files"]:
        path = inside(base, one["file"])
        found.append(_hashes(partial(path) if one["partial"] else path, block, first, deadline))
        first = 0
        if time.monotonic() > deadline:
            break
    return {"files": found}


def _hashes(path: str, block: int, first: int, deadline: float) -> JSON:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return {"hashes": [], "end": True, "stamp": ""}
    try:
        size = os.fstat(fd).st_size

        def digest(at: int) -> str:
            return hashlib.sha256(read_block(fd, at * block, block)).hexdigest()

        def wanted() -> Iterator[int]:
            for at in range(first, -(-size // block)):
                if at > first and time.monotonic() > deadline:
                    return
                yield at

        found = list(ahead(digest, wanted()) if size > block else map(digest, wanted()))
        info = os.fstat(fd)
    finally:
        os.close(fd)
    end = (first + len(found)) * block >= info.st_size
    return {"hashes": found, "end": end, "stamp": stamp(info)}


# --- receiving ---


def verb_put_open(request: JSON, workspace: str) -> JSON:
    """Is there room; and what is there already of each file: whole ("final"), a part, nothing."""
    base, headroom = base_of(request), int(request["headroom"])
    have, need = [], 0
    for one in request["files"]:
        path = inside(base, one["path"])
        if os.path.isdir(path):
            raise Refused("usage", f"{path} is a folder there")
        left = _size(partial(path))
        if _size(path) == one["size"]:
            have.append("final")
        else:
            have.append("partial" if left > 0 else "")
            if left > one["size"]:
                os.truncate(partial(path), one["size"])
        need += max(0, one["size"] - max(0, left)) if have[-1] != "final" else 0
    free = room(base)
    if need and free is not None and free < need + headroom:
        raise Refused(
            "no_room", f"{base} has room for {free} bytes, {need} are to be written",
            free=free, need=need,
        )  # fmt: skip
    with _login_mode():
        for name in request["folders"]:
            os.makedirs(inside(base, name), exist_ok=True)
        for folder in {os.path.dirname(inside(base, one["path"])) for one in request["files"]}:
            os.makedirs(folder, exist_ok=True)
    return {"have": have, "free": free, "need": need}


@contextlib.contextmanager
def _login_mode() -> Iterator[None]:
    """What is sent is for the user's own tools, unlike our records."""
    before = os.umask(LOGIN["umask"])
    try:
        yield
    finally:
        os.umask(before)


def _size(path: str) -> int:
    try:
        info = os.lstat(path)
    except OSError:
        return -1
    return info.st_size if stat.S_ISREG(info.st_mode) else -1


def verb_put(request: JSON, workspace: str) -> JSON:
    """Blocks on stdin, each after a line that says which it is; a line back for each written one.

    Their hashes are not asked for here: the whole file is read back before it gets its name.
    """
    base, source, told = base_of(request), sys.stdin.buffer, sys.stdout.buffer
    while True:
        signal.alarm(IDLE_S)
        line = source.readline()
        if not line.endswith(b"\n"):
            raise Refused("cut", "the blocks ended without an end")
        frame = json.loads(line.decode("ascii"))
        if not frame:
            return {}
        data = source.read(frame["size"])
        if len(data) != frame["size"]:
            raise Refused("cut", "a block did not arrive whole")
        path = partial(inside(base, frame["file"]))
        write_block(path, frame["offset"], data, frame["total"])
        told.write(b"{}\n")
        told.flush()


def verb_put_close(request: JSON, workspace: str) -> JSON:
    """Files that were read back and found right get their names."""
    base, folders = base_of(request), set()
    for one in request["files"]:
        path = inside(base, one["path"])
        source = partial(path)
        if one["size"] == 0:
            os.close(os.open(source, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        elif not os.path.exists(source) and _stamp_of(path) == one["stamp"]:
            continue  # it has its name: this request came before, and its answer was lost
        fd = os.open(source, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if one["size"] and stamp(os.fstat(fd)) != one["stamp"]:
                raise Refused("changed", f"{source} was changed by somebody else")
            os.fchmod(fd, one["mode"])
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(source, path)
        folders.add(os.path.dirname(path))
    for folder in folders:
        sync_dir(folder)
    return {}


# --- giving ---


def verb_get(request: JSON, workspace: str) -> JSON:
    """The bytes of some blocks, each after a line with its hash as it was read."""
    base, out = base_of(request), sys.stdout.buffer

    def read(frame: JSON) -> tuple[JSON, bytes]:
        fd = os.open(inside(base, frame["file"]), os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = read_block(fd, frame["offset"], frame["size"])
            info = os.fstat(fd)
        finally:
            os.close(fd)
        digest = hashlib.sha256(data).hexdigest()
        return {"sha256": digest, "size": len(data), "stamp": stamp(info)}, data

    for head, data in ahead(read, request["frames"]):
        signal.alarm(IDLE_S)
        out.write(json.dumps(head).encode("ascii") + b"\n")
        out.write(data)
    return {}
