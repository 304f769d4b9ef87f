"""One state as one file: a readable head, then the packed files with their digest.

    runbook-snapshot/1
    {"workspace_id": ..., "revision": ..., "author": ..., "size": ..., "sha256": ...}
    <gzip of a tar with the database and the workspace's texts>

A file that was torn, altered or made by a newer version is told as such, never half used.
"""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import TYPE_CHECKING

from state.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"runbook-snapshot/"
FORMAT = 1
DATABASE = "state.db"
LONGEST_HEAD = 1 << 16
LARGEST = 8 << 30
"""Bytes that we are willing to unpack: a damaged or hostile file must not fill the disk."""


class SnapshotDamaged(StateError):
    """The file is not a whole snapshot of a state."""

    def __init__(self, label: str, why: str, hint: str = "") -> None:
        super().__init__(
            f"{label} is not a whole state snapshot: {why}.",
            hint or "It was not used. Push it again from the machine that made it.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """What is known of a snapshot before it is unpacked."""

    workspace_id: str
    name: str
    title: str
    revision: int
    event_hash: str
    """Of the last event: with the revision it names one history, not only its length."""
    author: str
    at: str
    notes_sha256: str
    """Of PROGRESS.md's part that belongs to people, which no event tells of."""
    size: int = 0
    sha256: str = ""


def pack(head: SnapshotHead, files: Mapping[str, bytes]) -> bytes:
    """The whole file. `head.size` and `head.sha256` are filled in; equal content, equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            tar.addfile(info, io.BytesIO(files[name]))
    import gzip

    body = gzip.compress(buffer.getvalue(), compresslevel=6, mtime=0)
    filled = {**asdict(head), "size": len(body), "sha256": sha256(body).hexdigest()}
    text = json.dumps(filled, ensure_ascii=False, sort_keys=True).encode()
    return MAGIC + f"{FORMAT}\n".encode() + text + b"\n" + body


def read_head(data: bytes, label: str) -> SnapshotHead:
    """The head alone, from the first bytes of the file."""
    first, _, rest = data[: LONGEST_HEAD + 64].partition(b"\n")
    if not first.startswith(MAGIC):
        raise SnapshotDamaged(label, "it begins with something else", "Name another file.")
    version = first.removeprefix(MAGIC)
    if version != str(FORMAT).encode():
        raise SnapshotDamaged(
            label,
            f"its format is {version.decode('ascii', 'replace')[:20]}, ours is {FORMAT}",
            "Update this installation; the snapshot was not changed.",
        )
    line, ended, _ = rest.partition(b"\n")
    if not ended:
        raise SnapshotDamaged(label, "its head ends too early")
    try:
        found = json.loads(line)
        return SnapshotHead(**{field.name: found[field.name] for field in fields(SnapshotHead)})
    except (ValueError, KeyError, TypeError):
        raise SnapshotDamaged(label, "its head cannot be read") from None


def unpack(data: bytes, label: str) -> tuple[SnapshotHead, dict[str, bytes]]:
    """Head and files, after size and digest were held against the head."""
    head = read_head(data, label)
    body = data.split(b"\n", 2)[2]
    if len(body) != head.size:
        raise SnapshotDamaged(label, f"{len(body)} bytes instead of {head.size}")
    if sha256(body).hexdigest() != head.sha256:
        raise SnapshotDamaged(label, "its digest does not match its content")
    try:
        files = _files(body)
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        raise SnapshotDamaged(label, str(error)) from None
    if DATABASE not in files:
        raise SnapshotDamaged(label, "it holds no database")
    return head, files


def _files(body: bytes) -> dict[str, bytes]:
    import gzip

    files: dict[str, bytes] = {}
    total = 0
    with (
        gzip.GzipFile(fileobj=io.BytesIO(body)) as plain,
        tarfile.open(fileobj=plain, mode="r|") as tar,
    ):
        for member in tar:
            total += member.size
            if not member.isfile() or "/" in member.name or member.name.startswith("."):
                raise ValueError(f"it holds {member.name!r}, which no snapshot has")
            if total > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST} bytes")
            file = tar.extractfile(member)
            assert file is not None
            files[member.name] = file.read()
    return files
