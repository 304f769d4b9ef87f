"""Copies a model into memory (/dev/shm) if it fits there, else to a disk, and says which.

Runs on the host as a job payload with its neighbours on PYTHONPATH: standard library only, Python
3.8 or later. manifest.json comes last and makes the copy whole. A second run keeps what
proves right. Never writes over files that are not the model's, nor over a copy that is in use.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Dict, List, Optional, Sequence

from remote.payloads.model_blocks import GIB, Meter, copy_file, size_of
from remote.payloads.model_place import Place, choose, missing_bytes, nearest_folder
from remote.payloads.model_sources import (
    MANIFEST,
    Ended,
    Model,
    Source,
    files_below,
    open_model,
    read_manifest,
)
from remote.payloads.records import PARTIAL, Refused, emit, write_json

# Of Linux; the module fcntl has them only there.
F_SETSIG, F_SETLEASE = 10, 1024
EXIT_KEYS = 77
"""As of `dflash.errors`: `runbook` runs it again with new URLs."""


# -- what is there ---------------------------------------------------------------------------------


def is_copy(dest: Path, model: Model) -> bool:
    """Whether dest is already this model, whole: the same claims, or the same untouched source."""
    manifest = read_manifest(dest)
    if manifest.get("format") != "model-copy/1":
        return False
    have = {f["path"]: f for f in manifest["files"]}
    if set(have) != {f.path for f in model.files}:
        return False
    same_source = manifest.get("source") == model.label
    for file in model.files:
        entry = have[file.path]
        stamp = str(entry.get("stamp", entry.get("source_mtime_ns")))
        claimed = bool(file.sha256) and file.sha256 == entry["sha256"]
        untouched = not file.sha256 and same_source and file.stamp == stamp
        if not (claimed or untouched) or file.size != entry["size"]:
            return False
        if size_of(dest / file.path) != file.size:
            return False
    return True


# -- copying ---------------------------------------------------------------------------------------


def users_of(dest: Path) -> List[int]:
    """Processes that were started with the folder, or have a file of it open or mapped."""
    inside, found = os.fsencode("%s/" % dest), []
    for process in Path("/proc").glob("[0-9]*"):
        words: List[bytes] = []
        used = False
        with contextlib.suppress(OSError):  # it ended, or is another user's: its words are for all
            words = (process / "cmdline").read_bytes().split(b"\0")
            used = any(inside in word.rstrip(b"/") + b"/" for word in words)
            used = used or inside in (process / "maps").read_bytes()
            used = used or any(
                os.fsencode(os.readlink(link)).startswith(inside)
                for link in (process / "fd").iterdir()
            )
        copier = any(word.endswith(b"model_copy.py") for word in words)
        if used and not copier and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def is_open(path: Path) -> bool:
    """Whether anybody has a file open or mapped, by the kernel's word: it grants no lease then.

    That counts who is not in our /proc too: in another container, or hidden from us. A file system
    without leases, or a file that is not ours, says nothing.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        # Whoever opens it at this moment waits for us, and we are told: not by a signal that kills.
        fcntl.fcntl(file, F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    else:
        fcntl.fcntl(file, F_SETLEASE, fcntl.F_UNLCK)
        return False
    finally:
        os.close(file)


def copy_all(args: argparse.Namespace, place: Place, model: Model) -> None:
    """All files, then the manifest."""
    dest, files = place.path, model.files
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
            "stop that server and give --replace (in a runbook `replace: true`), or name another "
            "folder",
        )
    refuse_use(dest)
    (dest / MANIFEST).unlink(missing_ok=True)  # from here on the copy is not whole
    ours = {f.path + end for f in files for end in (PARTIAL, ".blocks" + PARTIAL)}
    for name in files_below(dest):
        if name.endswith(PARTIAL) and name not in ours:
            (dest / name).unlink()
    meter = Meter(sum(f.size for f in files))
    with ThreadPoolExecutor(args.streams) as readers, ThreadPoolExecutor(args.files) as copiers:
        jobs = [copiers.submit(copy_file, model, dest, f, readers, meter) for f in files]
        try:
            digests = [job.result() for job in jobs]
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
    entries = [
        {"path": f.path, "size": f.size, "sha256": digest, "stamp": f.stamp}
        for f, digest in zip(files, digests)  # noqa: B905  (Python 3.10)
    ]
    whole = {"format": "model-copy/1", "source": model.label, "files": entries}
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
    if args.reclaim:
        with take_lock(args):
            return reclaim(args)
    model = open_model(args.source)
    total = sum(f.size for f in model.files)
    with take_lock(args), contextlib.closing(model):
        place = existing(args, model)
        if place is None:
            place = copy_somewhere(args, choose(args, model.files, root), model)
    emit("done", "%s: %s" % (place.path, place.reason), total, total)
    return {
        "path": str(place.path), "where": place.where, "reason": place.reason,
        "bytes": total, "seconds": round(time.monotonic() - began, 2),
    }  # fmt: skip


def reclaim(args: argparse.Namespace) -> Dict[str, Any]:
    """Gives the memory back: removes a copy of ours from there, unless something uses it."""
    freed = 0
    manifest = read_manifest(args.shm)
    if manifest:
        refuse_use(args.shm)
        freed = sum(int(entry["size"]) for entry in manifest["files"])
        (args.shm / MANIFEST).unlink()
        for entry in manifest["files"]:
            (args.shm / entry["path"]).unlink(missing_ok=True)
    for name in files_below(args.shm) if args.shm.is_dir() else ():
        if name.endswith(PARTIAL):
            freed += size_of(args.shm / name)
            (args.shm / name).unlink()
    for folder, _, _ in sorted(os.walk(args.shm), reverse=True):
        if not os.listdir(folder):
            os.rmdir(folder)
    emit("done", "%.2f GiB of %s given back" % (freed / GIB, args.shm))
    return {"path": str(args.shm), "bytes": freed}


def refuse_use(dest: Path) -> None:
    """Raises Refused when a server lives on the copy."""
    users = users_of(dest)
    if users:
        raise Refused(
            "%s is used by %s" % (dest, ", ".join("process %d" % pid for pid in users[:5])),
            "stop what uses it first; `runbook run` stops servers by their `stop` task",
        )
    for name in files_below(dest) if dest.is_dir() else ():
        if is_open(dest / name):
            raise Refused(
                "%s/%s is open in a process that we cannot see" % (dest, name),
                "look in other containers that share %s, and as root: `fuser -v`" % dest.parent,
            )


def copy_somewhere(args: argparse.Namespace, place: Place, model: Model) -> Place:
    """At the chosen place, or on disk if somebody else takes the memory meanwhile."""
    try:
        return copy_to(args, place, model)
    except OSError as error:
        if error.errno != errno.ENOSPC or place.where != "shm":
            raise
        return copy_to(args, Place(args.disk, "disk", "memory filled up while copying"), model)


def existing(args: argparse.Namespace, model: Model) -> Optional[Place]:
    """A whole copy from before."""
    if not args.no_shm and is_copy(args.shm, model):
        return Place(args.shm, "shm", "was already there")
    if is_copy(args.disk, model):
        return Place(args.disk, "disk", "was already there")
    return None


def copy_to(args: argparse.Namespace, place: Place, model: Model) -> Place:
    """Copies to one place, unless the model lies there already."""
    if model.folder and os.path.realpath(place.path) == os.path.realpath(model.folder):
        return Place(model.folder, "disk", place.reason + "; used where it is")
    free, need = (
        shutil.disk_usage(nearest_folder(place.path)).free,
        missing_bytes(place.path, model.files),
    )
    if place.where == "disk" and free < need:
        raise Refused(
            "%s has %.1f GiB free, %.1f GiB are needed (No space left on device would follow); %s"
            % (nearest_folder(place.path), free / GIB, need / GIB, place.reason),
            "free space there or name another folder with --disk",
        )
    if place.where == "disk" and not read_manifest(args.shm):
        drop_remains(args.shm, model.files)
    emit("phase", "copying %s to %s (%s)" % (model.label, place.path, place.reason))
    copy_all(args, place, model)
    return place


def drop_remains(dest: Path, files: Sequence[Source]) -> None:
    """Gives memory back: an unfinished copy there is of no use to a server."""
    for file in files:
        for end in ("", PARTIAL, ".blocks" + PARTIAL):
            (dest / (file.path + end)).unlink(missing_ok=True)


def arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--source", default="", help="the model's folder, hub:ID[@REVISION], or s3://BUCKET/PREFIX"
    )
    parser.add_argument("--shm", type=Path, required=True, help="such as /dev/shm/NAME")
    parser.add_argument("--disk", type=Path, required=True, help="where it goes if memory is short")
    parser.add_argument("--no-shm", action="store_true", help="go to the disk at once")
    parser.add_argument("--replace", action="store_true", help="overwrite a copy of another model")
    parser.add_argument(
        "--headroom", type=int, default=4 * GIB, help="bytes to leave free in memory"
    )
    parser.add_argument("--streams", type=int, default=16, help="ranges read at the same time")
    parser.add_argument("--files", type=int, default=4, help="files copied at the same time")
    parser.add_argument(
        "--reclaim", action="store_true", help="remove the copy in memory unless it is used"
    )
    args = parser.parse_args(argv)
    if not args.source and not args.reclaim:
        parser.error("--source is needed")
    if not args.source.startswith(("hub:", "s3://")):
        args.source = os.path.abspath(os.path.expanduser(args.source))
    for name in ("shm", "disk"):
        setattr(args, name, Path(os.path.abspath(os.path.expanduser(str(getattr(args, name))))))
    return args


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command."""
    args = arguments(argv)
    try:
        result = make(args)
    except Refused as refusal:
        print("model_copy: %s\n  next: %s" % (refusal, refusal.hint), file=sys.stderr, flush=True)
        return EXIT_KEYS if isinstance(refusal, Ended) else 1
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
