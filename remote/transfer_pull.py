"""Files from a host: compare, fetch what is missing, read it back, then name it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from remote.errors import NoRoom, TransferFailed
from remote.supervisor.blocks import partial, write_block
from remote.supervisor.files import free_bytes, sync_dir
from remote.transfer import (
    BLOCK,
    HEADROOM,
    PATIENCE_S,
    Entry,
    Link,
    Progress,
    Report,
    carry,
    digests_of,
    keep_equal,
    name_of,
    reading,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote.host_files import HostFiles

AT_ONCE = 4096
"""Blocks to a command: their names travel before them."""


def pull(
    host: HostFiles,
    remote: str,
    local: Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    headroom: int = HEADROOM,
    patience_s: float = PATIENCE_S,
) -> Report:
    """Fetch a file or a tree. Files that are here with the same content are not fetched."""
    link = Link(host, progress, patience_s)
    listing = link.ask("list", {"path": remote})
    entries = [
        Entry(path=one["path"], size=one["size"], mode=one["mode"], stamp=one["stamp"])
        for one in listing["files"]
    ]
    for name in [entry.path for entry in entries] + listing["folders"]:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise TransferFailed(f"{host.label} names {name!r}, which leaves its folder")
    link.meter.count(entries)
    make_room(local, entries, listing["folders"], headroom)
    compare_with_here(link, local, remote, entries)
    carry(link, entries, lambda blocks: fetch(link, local, remote, blocks[:AT_ONCE]))
    for entry in entries:
        if entry.have != "final":
            finish(local, entry)
            link.meter.add("proving", 0)
    return link.meter.report()


def make_room(local: Path, entries: list[Entry], folders: list[str], headroom: int) -> None:
    """Folders for all files, if they fit.

    Raises:
        NoRoom: they do not.
    """
    need = 0
    for entry in entries:
        path = local / entry.path
        if path.is_dir():
            raise TransferFailed(f"Cannot fetch to {path}: it is a folder here")
        sizes = [size_of(path), size_of(Path(partial(str(path))))]
        entry.have = "final" if sizes[0] == entry.size else "partial" if sizes[1] > 0 else ""
        if entry.have != "final":
            need += max(0, entry.size - max(0, sizes[1]))
    free = free_bytes(str(local.absolute()))
    if need and free is not None and free < need + headroom:
        raise NoRoom(str(local), need=need, free=free, headroom=headroom)
    for folder in [*folders, *{str(Path(entry.path).parent) for entry in entries if entry.path}]:
        (local / folder).mkdir(parents=True, exist_ok=True)
    if not any(entry.path for entry in entries):
        local.absolute().parent.mkdir(parents=True, exist_ok=True)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


def compare_with_here(link: Link, local: Path, remote: str, entries: list[Entry]) -> None:
    known = [entry for entry in entries if entry.have]
    theirs = link.hashes(remote, [(entry, False) for entry in known])
    for entry in entries:
        entry.missing = set(entry.blocks())
    for entry, (digests, found) in zip(known, theirs, strict=True):
        if found != entry.stamp:
            raise changed(link.host, remote, entry)
        entry.hashes = dict(enumerate(digests))
        path = local / entry.path
        with reading(path if entry.have == "final" else Path(partial(str(path)))) as fd:
            here = digests_of(fd, entry, entry.blocks())
        keep_equal(link.meter, entry, entry.hashes, here)


def fetch(link: Link, local: Path, remote: str, blocks: list[tuple[Entry, int]]) -> None:
    """Writes blocks as they stream in."""
    frames = [
        {"file": entry.path, "offset": block * BLOCK, "size": entry.length(block)}
        for entry, block in blocks
    ]
    body = {"path": remote, "frames": frames}
    with link.host.transfer_stream("get", body) as stream:
        for entry, block in blocks:
            head = stream.next()
            if "ok" in head:
                link.host.transfer_answered(head, body)
            data = stream.block(head["size"])
            if head["stamp"] != entry.stamp:
                raise changed(link.host, remote, entry)
            target = partial(str(local / entry.path))
            try:
                write_block(target, block * BLOCK, data, entry.size)
            except OSError as error:
                raise TransferFailed(f"Cannot write {target}: {error.strerror}") from error
            entry.hashes[block] = head["sha256"]
            entry.missing.remove(block)
            link.moved()
            link.meter.add("copying", len(data), sent=len(data))


def changed(host: HostFiles, remote: str, entry: Entry) -> TransferFailed:
    return TransferFailed(
        f"{name_of(remote, entry)} on {host.label} was changed while it was fetched",
        hint="wait until it is whole, and fetch it again",
    )


def finish(local: Path, entry: Entry) -> None:
    """Reads the whole file back here, and gives it its name."""
    path = local / entry.path
    source = partial(str(path))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(source, flags, 0o600)
    try:
        os.ftruncate(fd, entry.size)
        found = digests_of(fd, entry, entry.blocks())
        wrong = [b for b in entry.blocks() if found[b] != entry.hashes[b]]
        if wrong:
            raise TransferFailed(
                f"{path} does not read back as it arrived (blocks {wrong[:5]})",
                hint="fetch it again; if it happens twice, do not trust that disk",
            )
        os.fchmod(fd, entry.mode)
        os.fsync(fd)
    finally:
        os.close(fd)
    Path(source).rename(path)
    sync_dir(str(path.absolute().parent))
