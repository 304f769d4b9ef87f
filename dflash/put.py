"""`dflash put`: a folder into an S3 prefix or a `file://` folder; what is equal there stays.

`.objects.json` is written last, after the store's own listing agreed, and taken away before the
first byte of a change: half an upload is never taken for a whole one. Nothing is deleted there.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.files import sha256_file, write_json
from dflash.objects import (
    MANIFEST,
    FolderStore,
    add_store_arguments,
    is_hidden,
    open_store,
    store_options,
)
from dflash.progress import Progress, write_out
from dflash.syncing import Tally, encoded, for_each, manifest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from dflash.s3 import StoreOptions
    from dflash.s3_store import S3Store

EXAMPLE = """example:
  python -m dflash put completions s3://bucket/runs/a/completions --endpoint https://s3.example.com

Files whose name or folder starts with a dot stay here. After a kill, the same command goes on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("folder", type=Path, metavar="DIR", help="what is uploaded")
    parser.add_argument("url", metavar="URL", help="s3://BUCKET/FOLDER or file:///DIR")
    add_store_arguments(parser)
    parser.add_argument(
        "--receipt", type=Path, metavar="FILE", help="written when all is there and whole"
    )


def run(args: argparse.Namespace) -> int:
    if args.receipt is not None:
        args.receipt.unlink(missing_ok=True)
    progress = Progress(echo=sys.stderr)
    done = put(args.folder, args.url, store_options(args), progress=progress)
    if args.receipt is not None:
        write_json(args.receipt, done)
    write_out(done)
    return 0


class Changed(DflashError):
    """Somebody wrote to a file while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """One file, as it was when the work began."""

    name: str
    path: Path
    size: int
    changed_ns: int


def put(folder: Path, url: str, options: StoreOptions, *, progress: Progress) -> dict[str, Any]:
    """Make the store hold every file below `folder`; returns what it came to."""
    store = open_store(url, options)
    files = local_files(folder)
    if not files:
        raise InputInvalid(f"{folder} holds no files", "Run the step that writes them.")
    if isinstance(store, FolderStore) and store.folder.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{url} lies inside {folder}", "Name a folder elsewhere.")
    _, done = send(files, store, options, progress=progress)
    return {"url": store.where, **done}


def local_files(folder: Path) -> list[Local]:
    """Every file below a folder, without hidden ones."""
    if not folder.is_dir():
        raise InputInvalid(f"{folder} is no folder", "Name the folder that is to be uploaded.")
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not is_hidden(name):
            found.append(local_file(path, name))
    return found


def local_file(path: Path, name: str) -> Local:
    """Raises InputInvalid when a store cannot have such a name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputInvalid(f"{str(path)!a} has a name that is no UTF-8", "Rename it.") from None
    about = path.stat()
    return Local(name=name, path=path, size=about.st_size, changed_ns=about.st_mtime_ns)


class Sender:
    """Brings single files to a store that may hold some of them. Many threads may use it."""

    def __init__(self, store: FolderStore | S3Store, options: StoreOptions) -> None:
        self._store, self._options = store, options
        self._there = store.listed()
        self._whole = MANIFEST in self._there
        self._claim = threading.Lock()
        self._room = threading.local()

    def send(self, file: Local) -> tuple[dict[str, Any], bool]:
        """The manifest's entry for it, and whether it had to travel."""
        small = file.size <= self._options.part
        data = self._read(file) if small else None
        digest = sha256_file(file.path) if data is None else hashlib.sha256(data).hexdigest()
        known = self._there.get(file.name)
        equal = known is not None and known.size == file.size
        equal = equal and self._store.digest(file.name) == digest
        if not equal:
            with self._claim:
                if self._whole:
                    self._store.remove(MANIFEST)  # from now on it would tell of another content
                    self._whole = False
            self._store.send(file.path, file.name, file.size, digest, data)
        if local_file(file.path, file.name) != file:
            raise Changed(
                f"{file.path} changed while it was uploaded",
                "Wait until nothing writes there, then run the same command again.",
            )
        return {"path": file.name, "size": file.size, "sha256": digest}, not equal

    def _read(self, file: Local) -> memoryview:
        """All of it, in memory that its thread uses again: new pages cost more than the copy."""
        room = getattr(self._room, "view", None)
        if room is None or len(room) < file.size:
            room = self._room.view = memoryview(bytearray(file.size))
        view: memoryview = room[: file.size]
        with file.path.open("rb", buffering=0) as handle:
            got = 0
            while got < file.size and (read := handle.readinto(view[got:])):
                got += read
        return view[:got]


def send(
    files: Sequence[Local],
    store: FolderStore | S3Store,
    options: StoreOptions,
    *,
    progress: Progress,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Upload what differs, have the store list it, write the manifest; its entries, and counts."""
    total = sum(file.size for file in files)
    progress.emit("phase", done=0, total=total, unit="bytes", message=f"to {store.where}")
    with store.writing():
        sender = Sender(store, options)
        tally = Tally(progress, files=len(files), total=total)
        entries: list[dict[str, Any]] = []

        def one(file: Local) -> None:
            entry, moved = sender.send(file)
            entries.append(entry)
            tally.add(file.size, moved=moved)

        for_each(one, files, options.connections, store)
        _agree(files, store)
        store.write(MANIFEST, encoded(manifest(entries)))
    progress.emit(
        "done", done=total, total=total, unit="bytes",
        message=f"{tally.moved_files} of {len(files)} files were sent to {store.where}",
    )  # fmt: skip
    return sorted(entries, key=lambda entry: entry["path"]), tally.summary()


def _agree(files: Sequence[Local], store: FolderStore | S3Store) -> None:
    there = store.listed()
    for file in files:
        found = there.get(file.name)
        if found is None or found.size != file.size:
            said = "is missing" if found is None else f"has {found.size} bytes, not {file.size}"
            raise DflashError(
                f"{store.where}/{file.name} {said} after the upload",
                "The store lost it, or another process writes there. Run the same command again.",
            )
