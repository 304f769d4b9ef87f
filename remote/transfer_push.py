"""Files to a host: compare, send what it lacks, have it read back, then let it name them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from remote.errors import TransferFailed
from remote.supervisor.transfer import read_block, stamp
from remote.transfer import (
    BLOCK,
    HEADROOM,
    PATIENCE_S,
    Entry,
    Link,
    Meter,
    Progress,
    Report,
    Smaller,
    batches,
    digest_of,
    keep_equal,
    name_of,
    reading,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote.host import Host


def push(
    host: Host,
    local: Path,
    remote: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    headroom: int = HEADROOM,
    patience_s: float = PATIENCE_S,
) -> Report:
    """Send a file or a tree. Files that the host has with the same content are not sent."""
    entries, folders = scan(local)
    meter = Meter(progress)
    meter.total, meter.files = sum(entry.size for entry in entries), len(entries)
    link = Link(host, meter, patience_s)
    listed = [{"path": e.path, "size": e.size, "mode": e.mode} for e in entries]
    ask = {"path": remote, "files": listed, "folders": folders, "headroom": headroom}
    for entry, have in zip(entries, link.ask("put_open", ask)["have"], strict=True):
        entry.have = have
    compare_with_host(link, local, remote, entries)
    while any(entry.missing for entry in entries):
        with contextlib.suppress(Smaller):
            for batch in batches(entries, link):
                send(link, local, remote, batch)
    unnamed = [entry for entry in entries if entry.have != "final"]
    stamps = prove_on_host(link, remote, unnamed)
    closing = [
        {"path": e.path, "size": e.size, "mode": e.mode, "stamp": stamps[e.path]} for e in unnamed
    ]
    if closing:
        link.ask("put_close", {"path": remote, "files": closing})
    meter.add("proving", 0, force=True)
    return meter.report()


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
        entry.missing = list(entry.blocks())
    for entry, (digests, _) in zip(known, theirs, strict=True):
        with reading(local / entry.path) as fd:
            ours = [digest_of(fd, entry, block) for block in entry.blocks()[: len(digests)]]
        entry.hashes = dict(enumerate(ours))
        keep_equal(link.meter, entry, dict(enumerate(digests)), ours)


def find_arrived(link: Link, remote: str, batch: list[tuple[Entry, int]]) -> None:
    """After a cut: which blocks had arrived after all. Small files are just sent again."""
    cut = list({id(entry): entry for entry, _ in batch if entry.size > BLOCK}.values())
    for entry, (theirs, _) in zip(cut, link.hashes(remote, [(e, True) for e in cut]), strict=True):
        arrived = {b for b in entry.missing if theirs[b : b + 1] == [entry.hashes.get(b)]}
        entry.missing = [block for block in entry.missing if block not in arrived]
        size = sum(entry.length(block) for block in arrived)
        link.meter.add("copying", size, sent=size)


def send(link: Link, local: Path, remote: str, batch: list[tuple[Entry, int]]) -> None:
    frames, pieces = [], []
    for entry, block in batch:
        with reading(local / entry.path) as fd:
            data = read_block(fd, block * BLOCK, entry.length(block))
            if stamp(os.fstat(fd)) != entry.stamp or len(data) != entry.length(block):
                raise TransferFailed(
                    f"{local / entry.path} was changed while it was sent",
                    hint="stop whatever writes to it, and send it again",
                )
        entry.hashes[block] = hashlib.sha256(data).hexdigest()
        frames.append(
            {"file": entry.path, "offset": block * BLOCK, "size": len(data),
             "sha256": entry.hashes[block], "total": entry.size}
        )  # fmt: skip
        pieces.append(data)
    raw = b"".join(pieces)
    try:
        link.ask("put", {"path": remote, "frames": frames}, raw=raw)
    except Smaller:
        find_arrived(link, remote, batch)
        raise
    for entry, block in batch:
        entry.missing.remove(block)
    link.meter.add("copying", len(raw), sent=len(raw))


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
