"""`dflash get`: what `dflash put` uploaded into a folder, proved by SHA-256; what is equal stays.

Each file is written aside and renamed when its digest is right, a large one of S3 over as many runs
as it takes; `.objects.json` of the folder is written last. Files of the folder that the store does
not have are left alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import DflashError, InputInvalid
from dflash.files import sha256_file, sync_folder, write_aside
from dflash.objects import (
    FORMAT,
    MANIFEST,
    FolderStore,
    add_store_arguments,
    is_hidden,
    only_writer,
    open_store,
    stays_inside,
    store_options,
)
from dflash.progress import Progress, write_out
from dflash.ranged import reserved
from dflash.syncing import Tally, encoded, for_each, manifest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from dflash.s3 import StoreOptions
    from dflash.s3_store import S3Store

EXAMPLE = """example:
  python -m dflash get s3://bucket/runs/a/completions completions

After a kill, the same command goes on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("url", metavar="URL", help="s3://BUCKET/FOLDER or file:///DIR")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where it goes")
    add_store_arguments(parser)
    parser.add_argument(
        "--plain", action="store_true",
        help="all objects below URL, though no `dflash put` vouches for them",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    progress = Progress(echo=sys.stderr)
    options = store_options(args)
    write_out(get(args.url, args.folder, options, plain=args.plain, progress=progress))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One object; `sha256` is empty when nobody recorded it."""

    name: str
    size: int
    sha256: str = ""
    etag: str = ""

    def lies_at(self, path: Path) -> bool:
        """Whether the file there is this one, as far as anybody can tell."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        if self.sha256:
            return sha256_file(path) == self.sha256
        with path.open("rb") as handle:  # the ETag of what was stored in one piece
            return hashlib.file_digest(handle, "md5").hexdigest() == self.etag


def get(
    url: str, folder: Path, options: StoreOptions, *, plain: bool = False, progress: Progress
) -> dict[str, Any]:
    """Make `folder` hold the objects; returns what it came to."""
    store = open_store(url, options)
    wanted = _all_objects(store) if plain else _as_uploaded(store)
    total = sum(one.size for one in wanted)
    progress.emit("phase", done=0, total=total, unit="bytes", message=f"from {store.where}")
    with only_writer(folder):
        (folder / MANIFEST).unlink(missing_ok=True)
        _refuse_short_disk(wanted, folder)
        tally = Tally(progress, files=len(wanted), total=total)
        entries: list[dict[str, Any]] = []

        def one(file: Wanted) -> None:
            path = folder / file.name
            equal = file.lies_at(path)
            if equal:
                digest = file.sha256 or sha256_file(path)
            else:
                digest = store.fetch(file.name, file.size, path, file.sha256)
            entries.append({"path": file.name, "size": file.size, "sha256": digest})
            tally.add(file.size, moved=not equal)

        for_each(one, wanted, options.connections, store)
        for place in {(folder / file.name).parent for file in wanted}:
            sync_folder(place)
        with write_aside(folder / MANIFEST) as handle:
            handle.write(encoded(manifest(entries)))
    progress.emit(
        "done", done=total, total=total, unit="bytes",
        message=f"{tally.moved_files} of {len(wanted)} files were fetched into {folder}",
    )  # fmt: skip
    return {"path": str(folder.absolute()), "url": store.where, **tally.summary()}


def _as_uploaded(store: FolderStore | S3Store) -> list[Wanted]:
    """The files of the manifest that `put` wrote last."""
    data = store.read(MANIFEST)
    if data is None:
        raise InputInvalid(
            f"{store.where} holds no {MANIFEST}: an upload that did not end, or none of ours",
            "Let `dflash put` end; or take what is there as it is with --plain.",
        )
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}, not {FORMAT}")
        files = [
            Wanted(name=str(one["path"]), size=int(one["size"]), sha256=str(one["sha256"]))
            for one in found["files"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputInvalid(
            f"{store.where}/{MANIFEST} is no manifest of `dflash put`: {error}",
            "Upload the folder again.",
        ) from error
    return _safe(files, store)


def _all_objects(store: FolderStore | S3Store) -> list[Wanted]:
    files = [
        Wanted(name=name, size=about.size, etag=about.etag)
        for name, about in store.listed().items()
        if not is_hidden(name)
    ]
    if not files:
        raise InputInvalid(f"{store.where} holds no objects", "Check the address.")
    return _safe(files, store)


def _safe(files: list[Wanted], store: FolderStore | S3Store) -> list[Wanted]:
    for file in files:
        if not stays_inside(file.name):
            raise InputInvalid(
                f"{store.where} lists {file.name!r}, which is no name of a file in a folder",
                "Upload it under another name.",
            )
    return files


def _refuse_short_disk(wanted: Sequence[Wanted], folder: Path) -> None:
    needed = 0
    for file in wanted:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            needed += file.size - reserved(path)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DflashError(
            f"{folder} has {free / 1e9:,.1f} GB free, {needed / 1e9:,.1f} GB are to come",
            "Free the difference, or name a folder on a larger disk.",
        )
