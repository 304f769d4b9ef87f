"""Copies a model folder into memory (/dev/shm) if it fits there, else to a disk, and says which.

Runs on the host as a job payload: standard library only, Python 3.8 or later. Each file is
reserved, copied aside, read back and renamed; manifest.json comes last and makes the copy whole.
A second run keeps every file that proves right. Never writes over files that are not the model's.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

MANIFEST = "manifest.json"
PARTIAL = ".partial"
BLOCK = 8 << 20
GIB = 1 << 30
MEMORY_TYPES = ("tmpfs", "ramfs")


class Refused(Exception):
    """A reason why there is no copy, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Source(NamedTuple):
    """One file of the model. The sha256 is the source's own claim, or empty."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


class Place(NamedTuple):
    """Where the copy goes, and why there."""

    path: Path
    where: str
    reason: str


class Meter:
    """Progress lines, a few a second whatever the number of threads."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._told = 0.0

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            now = time.monotonic()
            if now - self._told < 0.5 and self._done < self._total:
                return
            self._told = now
            emit("step", "copied %.2f of %.2f GiB" % (self._done / GIB, self._total / GIB),
                 self._done, self._total)  # fmt: skip


def emit(kind: str, message: str, done: Optional[int] = None, total: Optional[int] = None) -> None:
    """One progress line; phases also on stdout, which is the job's log."""
    if kind != "step":
        print(message, flush=True)
    path = os.environ.get("RUNBOOK_PROGRESS")
    if not path:
        return
    line = {
        "v": 1, "kind": kind, "done": done, "total": total, "unit": "bytes",
        "message": message, "metrics": {}, "t": time.time(),
    }  # fmt: skip
    with open(path, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def sync_folder(folder: Path) -> None:
    """Makes a rename in the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Aside, fsync, rename."""
    aside = path.with_name(path.name + PARTIAL)
    with open(aside, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


# -- what there is to copy -------------------------------------------------------------------------


def read_manifest(folder: Path) -> Dict[str, Any]:
    """A folder's manifest; an empty one when it has none that can be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("files"), list) else {}


def files_below(folder: Path) -> List[str]:
    """Relative names; hidden ones and manifests are not part of a model. Links are followed:
    a hub cache consists of them."""
    names: List[str] = []
    for base, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        kept = [name for name in files if not name.startswith(".") and name != MANIFEST]
        names += [os.path.relpath(os.path.join(base, name), folder) for name in kept]
    return sorted(names)


def read_source(folder: Path) -> List[Source]:
    """The model's files, with the hashes that its manifest claims."""
    if not folder.is_dir():
        raise Refused("%s is not a folder" % folder, "fetch the model first, or correct --source")
    claims = {str(f.get("path")): f for f in read_manifest(folder).get("files", [])}
    found = []
    for name in files_below(folder):
        if name.endswith(PARTIAL):
            raise Refused(
                "%s is still being written: %s" % (folder, name), "wait for it to be whole"
            )
        stat = (folder / name).stat()
        claim = claims.pop(name, {})
        if claim and claim.get("size") != stat.st_size:
            raise Refused(
                "%s has %d bytes, its manifest says %s"
                % (folder / name, stat.st_size, claim.get("size")),
                "fetch the model again",
            )
        found.append(Source(name, stat.st_size, stat.st_mtime_ns, str(claim.get("sha256", ""))))
    if claims or not found:
        what = ", ".join(sorted(claims)[:5]) or "any file"
        raise Refused("%s lacks %s" % (folder, what), "fetch the model again")
    return found


def is_copy(dest: Path, files: Sequence[Source], source: Path) -> bool:
    """Whether dest is already this model, whole: the same claims, or the same untouched source."""
    manifest = read_manifest(dest)
    if manifest.get("format") != "model-copy/1":
        return False
    have = {f["path"]: f for f in manifest["files"]}
    if set(have) != {f.path for f in files}:
        return False
    same_source = manifest.get("source") == str(source)
    for file in files:
        entry = have[file.path]
        claimed = bool(file.sha256) and file.sha256 == entry["sha256"]
        untouched = not file.sha256 and same_source and file.mtime_ns == entry["source_mtime_ns"]
        if not (claimed or untouched) or file.size != entry["size"]:
            return False
        if size_of(dest / file.path) != file.size:
            return False
    return True


# -- where it fits ---------------------------------------------------------------------------------


def nearest_folder(path: Path) -> Path:
    """The first parent that exists."""
    return next(p for p in (path, *path.parents) if p.is_dir())


def mount_type(path: Path, mounts: Path) -> str:
    """The file system that holds path, by the mount table alone."""
    best, kind = "", ""
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = point == "/" or str(path) == point or str(path).startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def free_memory(root: Path) -> int:
    """What this process may still take: the machine's, or less under a container's limit."""
    lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    frees = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    frees += [free for free in map(group_free, memory_groups(root)) if free is not None]
    return min(frees) if frees else 0


def memory_groups(root: Path) -> List[Path]:
    """The folders of this process's memory control group and of all groups above it."""
    top = root / "sys/fs/cgroup"
    found: List[Path] = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = top if not controllers else top / "memory"
        if controllers and "memory" not in controllers.split(","):
            continue
        group = base / path.lstrip("/")
        found += [p for p in (group, *group.parents) if p == base or base in p.parents]
    return [*found, top, top / "memory"]


def group_free(group: Path) -> Optional[int]:
    """Bytes left in one control group (version 2 or 1); None when it sets no limit."""
    for limit_name, used_name, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit = (group / limit_name).read_text(encoding="ascii").strip()
            if limit == "max" or int(limit) > 1 << 60:
                return None
            free = int(limit) - int((group / used_name).read_text(encoding="ascii"))
            for line in (group / "memory.stat").read_text(encoding="ascii").splitlines():
                if line.split()[:1] == [cache]:  # page cache that the kernel gives back
                    free += int(line.split()[1])
            return max(free, 0)
        except (OSError, ValueError):
            continue
    return None


def size_of(path: Path) -> int:
    """A file's size; -1 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def missing_bytes(dest: Path, files: Sequence[Source]) -> int:
    """What a copy to dest would allocate, given what an unfinished one left there."""
    need = 0
    for file in files:
        left = [size_of(dest / file.path), size_of(dest / (file.path + PARTIAL))]
        need += max(0, file.size - sum(size for size in left if size > 0))
    return need


def choose(args: argparse.Namespace, files: Sequence[Source], root: Path) -> Place:
    """Memory if the file system there, the machine and the container all have room."""
    need = missing_bytes(args.shm, files) + args.headroom
    folder = nearest_folder(args.shm)
    kind = mount_type(Path(os.path.realpath(folder)), root / "proc/mounts")
    if args.no_shm:
        return Place(args.disk, "disk", "memory was not asked for")
    if kind not in MEMORY_TYPES:
        return Place(args.disk, "disk", "%s is on %s, not in memory" % (folder, kind or "a disk"))
    for free, what in (
        (shutil.disk_usage(folder).free, str(folder)),
        (free_memory(root), "memory"),
    ):
        if free < need:
            reason = "%s has %.1f GiB free, %.1f GiB are needed with headroom"
            return Place(args.disk, "disk", reason % (what, free / GIB, need / GIB))
    return Place(args.shm, "shm", "fits in memory with %.1f GiB headroom" % (args.headroom / GIB))


# -- copying ---------------------------------------------------------------------------------------


def sha256_of(path: Path) -> str:
    """A file's hash, read back from where it lies."""
    seen = hashlib.sha256()
    with open(path, "rb", buffering=0) as handle:
        for block in iter(lambda: handle.read(BLOCK), b""):
            seen.update(block)
    return seen.hexdigest()


def copy_file(
    source: Path, dest: Path, file: Source, readers: ThreadPoolExecutor, meter: Meter
) -> str:
    """Copies one file and returns its hash. Ranges are read ahead in parallel, taken in order."""
    final = dest / file.path
    final.parent.mkdir(parents=True, exist_ok=True)
    if file.sha256 and size_of(final) == file.size and sha256_of(final) == file.sha256:
        meter.add(file.size)
        return file.sha256
    final.unlink(missing_ok=True)  # its room is wanted for the copy
    partial = final.with_name(final.name + PARTIAL)
    came = os.open(source / file.path, os.O_RDONLY)
    goes = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        if file.size:
            os.posix_fallocate(goes, 0, file.size)  # a full disk is found here, not half way
        digest = pump(came, goes, file, readers, meter)
        os.fsync(goes)
    finally:
        os.close(came)
        os.close(goes)
    if file.sha256 and digest != file.sha256:
        raise Refused(
            "%s is damaged: its sha256 is %s, its manifest says %s"
            % (source / file.path, digest, file.sha256),
            "fetch the model again",
        )
    if sha256_of(partial) != digest:
        raise Refused(
            "%s does not read back as it was written" % partial,
            "the memory or disk of this host is not to be trusted; take another",
        )
    os.replace(partial, final)
    sync_folder(final.parent)
    return digest


def pump(came: int, goes: int, file: Source, readers: ThreadPoolExecutor, meter: Meter) -> str:
    """Reads blocks a few ahead, hashes and writes them in order."""
    seen = hashlib.sha256()
    ahead: List[Future[bytes]] = []
    asked = written = 0
    while written < file.size:
        while asked < file.size and len(ahead) < 4:
            ahead.append(readers.submit(read_range, came, asked, min(BLOCK, file.size - asked)))
            asked += BLOCK
        block = ahead.pop(0).result()
        if not block:
            raise Refused("%s shrank while it was read" % file.path, "stop whatever writes to it")
        seen.update(block)
        view = memoryview(block)
        while view:
            view = view[os.pwrite(goes, view, written + len(block) - len(view)) :]
        written += len(block)
        meter.add(len(block))
    return seen.hexdigest()


def read_range(handle: int, offset: int, size: int) -> bytes:
    """Exactly size bytes, or nothing when the file ends before."""
    parts = []
    while size:
        part = os.pread(handle, size, offset)
        if not part:
            return b""
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def copy_all(args: argparse.Namespace, place: Place, files: Sequence[Source]) -> None:
    """All files, then the manifest."""
    dest = place.path
    dest.mkdir(parents=True, exist_ok=True)
    known = {f.path for f in files}
    strange = [n for n in files_below(dest) if n not in known and not n.endswith(PARTIAL)]
    if strange:
        raise Refused(
            "%s holds files that are not the model's: %s" % (dest, ", ".join(strange[:5])),
            "name another folder, or remove that one",
        )
    if read_manifest(dest) and not args.replace:
        raise Refused(
            "%s is a whole copy of something else, which a server may be using" % dest,
            "stop that server and pass --replace, or name another folder",
        )
    (dest / MANIFEST).unlink(missing_ok=True)  # from here on the copy is not whole
    for name in files_below(dest):
        if name.endswith(PARTIAL):
            (dest / name).unlink()
    meter = Meter(sum(f.size for f in files))
    with ThreadPoolExecutor(args.streams) as readers, ThreadPoolExecutor(args.files) as copiers:
        jobs = [copiers.submit(copy_file, args.source, dest, f, readers, meter) for f in files]
        try:
            digests = [job.result() for job in jobs]
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
    entries = [
        {"path": f.path, "size": f.size, "sha256": digest, "source_mtime_ns": f.mtime_ns}
        for f, digest in zip(files, digests)  # noqa: B905  (Python 3.10)
    ]
    whole = {"format": "model-copy/1", "source": str(args.source), "files": entries}
    write_json(dest / MANIFEST, whole)


def take_lock(args: argparse.Namespace) -> IO[str]:
    """One copier per copy, in memory or on disk."""
    args.disk.parent.mkdir(parents=True, exist_ok=True)
    path = args.disk.parent / (".%s.copy-lock" % args.disk.name)
    handle = open(path, "w", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        emit("phase", "another copy of this model is running; waiting for it")
        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def make(args: argparse.Namespace, root: Path = Path("/")) -> Dict[str, Any]:
    """Finds or makes the copy; the result record."""
    began = time.monotonic()
    files = read_source(args.source)
    total = sum(f.size for f in files)
    with take_lock(args):
        place = existing(args, files)
        if place is None:
            place = copy_somewhere(args, choose(args, files, root), files)
    emit("done", "%s: %s" % (place.path, place.reason), total, total)
    return {
        "path": str(place.path), "where": place.where, "reason": place.reason,
        "bytes": total, "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip


def copy_somewhere(args: argparse.Namespace, place: Place, files: Sequence[Source]) -> Place:
    """At the chosen place, or on disk if somebody else takes the memory meanwhile."""
    try:
        return copy_to(args, place, files)
    except OSError as error:
        if error.errno != errno.ENOSPC or place.where != "shm":
            raise
        return copy_to(args, Place(args.disk, "disk", "memory filled up while copying"), files)


def existing(args: argparse.Namespace, files: Sequence[Source]) -> Optional[Place]:
    """A whole copy from before."""
    if not args.no_shm and is_copy(args.shm, files, args.source):
        return Place(args.shm, "shm", "was already there")
    if is_copy(args.disk, files, args.source):
        return Place(args.disk, "disk", "was already there")
    return None


def copy_to(args: argparse.Namespace, place: Place, files: Sequence[Source]) -> Place:
    """Copies to one place, unless the model lies there already."""
    if os.path.realpath(place.path) == os.path.realpath(args.source):
        return Place(args.source, "disk", place.reason + "; used where it is")
    free, need = (
        shutil.disk_usage(nearest_folder(place.path)).free,
        missing_bytes(place.path, files),
    )
    if place.where == "disk" and free < need:
        raise Refused(
            "%s has %.1f GiB free, %.1f GiB are needed (No space left on device would follow); %s"
            % (nearest_folder(place.path), free / GIB, need / GIB, place.reason),
            "free space there or name another folder with --disk",
        )
    if place.where == "disk" and not read_manifest(args.shm):
        drop_remains(args.shm, files)
    emit("phase", "copying %s to %s (%s)" % (args.source, place.path, place.reason))
    copy_all(args, place, files)
    return place


def drop_remains(dest: Path, files: Sequence[Source]) -> None:
    """Gives memory back: an unfinished copy there is of no use to a server."""
    for file in files:
        for path in (dest / file.path, dest / (file.path + PARTIAL)):
            path.unlink(missing_ok=True)


def arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--source", type=Path, required=True, help="the model's folder")
    parser.add_argument("--shm", type=Path, required=True, help="such as /dev/shm/NAME")
    parser.add_argument("--disk", type=Path, required=True, help="where it goes if memory is short")
    parser.add_argument("--no-shm", action="store_true", help="go to the disk at once")
    parser.add_argument("--replace", action="store_true", help="overwrite a copy of another model")
    parser.add_argument(
        "--headroom", type=int, default=4 * GIB, help="bytes to leave free in memory"
    )
    parser.add_argument("--streams", type=int, default=8, help="ranges read at the same time")
    parser.add_argument("--files", type=int, default=4, help="files copied at the same time")
    args = parser.parse_args(argv)
    for name in ("source", "shm", "disk"):
        setattr(args, name, Path(os.path.abspath(os.path.expanduser(str(getattr(args, name))))))
    return args


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command."""
    args = arguments(argv)
    try:
        result = make(args)
    except Refused as refusal:
        print("model_copy: %s\n  next: %s" % (refusal, refusal.hint), file=sys.stderr, flush=True)
        return 1
    except OSError as error:
        print("model_copy: %s" % error, file=sys.stderr, flush=True)
        return 1
    out = os.environ.get("RUNBOOK_OUT")
    if out:
        write_json(Path(out), result)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
