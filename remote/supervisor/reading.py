"""Reading a job's output and other files of the host; shipping small files to it."""

from __future__ import annotations

import binascii
import os
import shutil

from remote.supervisor.base import JSON, STREAMS, Refused, checked_name, job_path, packed
from remote.supervisor.files import aside, make_dirs, read_json, sync_dir, write_new

READ_LIMIT = 8 << 20


def verb_read(request: JSON, workspace: str) -> JSON:
    job = job_path(workspace, request.get("attempt"))
    stream = request.get("stream")
    if stream not in STREAMS:
        raise Refused("usage", f"no stream {stream!r}")
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
        raise Refused("unreadable", f"{path}: {error.strerror}") from error
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
                raise Refused("usage", f"file name {name!r} leaves its directory")
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
