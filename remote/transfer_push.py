"""Files to a host: compare, send what it lacks, have it read back, then let it name them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from remote.errors import TransferFailed
from remote.supervisor.blocks import ahead, read_block, stamp
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
    from collections.abc import Callable, Generator

    from remote.host_files import HostFiles


def push(
    host: HostFiles,
    local: Path,
    remote: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    headroom: int = HEADROOM,
    patience_s: float = PATIENCE_S,
) -> Report:
    """Send a file or a tree. Files that the host has with the same content are not sent."""
    entries, folders = scan(local)
    link = Link(host, progress, patience_s)
    link.meter.count(entries)
    listed = [{"path": e.path, "size": e.size, "mode": e.mode} for e in entries]
    ask = {"path": remote, "files": listed, "folders": folders, "headroom": headroom}
    for entry, have in zip(entries, link.ask("put_open", ask)["have"], strict=True):
        entry.have = have
    compare_with_host(link, local, remote, entries)
    carry(link, entries, lambda blocks: send(link, local, remote, blocks))
    unnamed = [entry for entry in entries if entry.have != "final"]
    stamps = prove_on_host(link, remote, unnamed)
    closing = [
        {"path": e.path, "size": e.size, "mode": e.mode, "stamp": stamps[e.path]} for e in unnamed
    ]
    if closing:
        link.ask("put_close", {"path": remote, "files": closing})
    return link.meter.report()


def scan(local: Path) -> tuple[list[Entry], list[str]]:
    """The files at a path here, in order, and its folders."""
    if not local.exists():
        raise TransferFailed(f"Cannot send {local}: there is no such file or folder")
    if local.is_file():
        return [entry_of(local, "")], []
    entries, folders = [], []
    for folder, below, names in os.walk(local):
        start = Path(folder).relative_to(local)
        for name in below:
            if (Path(folder) / name).is_symlink():
                raise TransferFailed(
                    f"Cannot send {folder}/{name}: it is a link to a folder",
                    hint="replace it by the folder itself, or send that by itself",
                )
            folders.append(str(start / name))
        entries += [
            entry_of(Path(folder) / name, str(start / name))
            for name in names
            if not (name.startswith(".") and name.endswith(".partial"))
        ]
    return sorted(entries, key=lambda entry: entry.path), sorted(folders)


def entry_of(path: Path, name: str) -> Entry:
    try:
        info = path.stat()
    except OSError as error:
        raise TransferFailed(f"Cannot send {path}: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode):
        raise TransferFailed(f"Cannot send {path}: it is neither a file nor a folder")
    mode = stat.S_IMODE(info.st_mode) & 0o777
    return Entry(path=name, size=info.st_size, mode=mode, stamp=stamp(info))


def compare_with_host(link: Link, local: Path, remote: str, entries: list[Entry]) -> None:
    """Finds the blocks that the host lacks, by the content of those it has."""
    known = [entry for entry in entries if entry.have]
    theirs = link.hashes(remote, [(entry, entry.have == "partial") for entry in known])
    for entry in entries:
        entry.missing = set(entry.blocks())
    for entry, (digests, _) in zip(known, theirs, strict=True):
        with reading(local / entry.path) as fd:
            ours = digests_of(fd, entry, entry.blocks()[: len(digests)])
        entry.hashes = dict(enumerate(ours))
        keep_equal(link.meter, entry, dict(enumerate(digests)), ours)


def send(link: Link, local: Path, remote: str, blocks: list[tuple[Entry, int]]) -> None:
    """Streams blocks, and notes each that the host says to have written."""
    body = {"path": remote}
    with link.host.transfer_stream("put", body) as stream:
        stream.feed(pieces(local, blocks))
        for entry, block in blocks:
            said = stream.next()
            if "ok" in said:
                link.host.transfer_answered(said, body)
            entry.missing.remove(block)
            link.moved()
            link.meter.add("copying", entry.length(block), sent=entry.length(block))


def pieces(local: Path, blocks: list[tuple[Entry, int]]) -> Generator[bytes, None, None]:
    """What goes over the line: each block after its place, and the end."""

    def read(wanted: tuple[Entry, int]) -> tuple[bytes, bytes]:
        entry, block = wanted
        with reading(local / entry.path) as fd:
            data = read_block(fd, block * BLOCK, entry.length(block))
            if stamp(os.fstat(fd)) != entry.stamp:
                raise TransferFailed(
                    f"{local / entry.path} was changed while it was sent",
                    hint="stop whatever writes to it, and send it again",
                )
        entry.hashes[block] = hashlib.sha256(data).hexdigest()
        place = {"file": entry.path, "offset": block * BLOCK, "size": len(data),
                 "total": entry.size}  # fmt: skip
        return json.dumps(place).encode() + b"\n", data

    for place, data in ahead(read, blocks):
        yield place
        yield data
    yield b"{}\n"


def prove_on_host(link: Link, remote: str, entries: list[Entry]) -> dict[str, str]:
    """Reads whole files back on the host; their stamps when every block is right."""
    full = [entry for entry in entries if entry.size]
    stamps = {entry.path: "" for entry in entries}
    for entry, (theirs, found) in zip(
        full, link.hashes(remote, [(entry, True) for entry in full]), strict=True
    ):
        link.meter.add("proving", 0)
        ours = [entry.hashes[block] for block in entry.blocks()]
        if theirs != ours:
            raise TransferFailed(
                f"{name_of(remote, entry)} on {link.host.label} does not read back as it was sent",
                hint="send it again; if it happens twice, do not trust that disk or memory",
            )
        stamps[entry.path] = found
    return stamps
