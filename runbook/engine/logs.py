"""Local copies of job output. The copy's size is the cursor: a crash neither skips nor repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.views import Live

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from remote import Host, JobStatus
    from remote.model import LogChunk, Stream
    from runbook.workspace import Workspace

STREAMS: tuple[Stream, ...] = ("out", "err", "progress")
CHUNK = 1 << 18
PER_TICK = 1 << 22
"""Bytes of one stream copied in one tick, so that one chatty job cannot starve the others."""
GAP = b"\n[the host kept the beginning and the end of this log; its middle is gone]\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A copy that has become longer."""

    stream: Stream
    path: Path
    size: int


def sizes_of(status: JobStatus) -> dict[Stream, int]:
    """How long its streams are on the host."""
    return {"out": status.out_size, "err": status.err_size, "progress": status.progress_size}


def mirror(host: Host, workspace: Workspace, status: JobStatus) -> list[Growth]:
    """Copies what is new in the streams of one attempt."""
    sizes, found = sizes_of(status), []
    for stream in STREAMS:
        path = workspace.log(status.attempt, stream)
        # Equal sizes are equal streams: nothing to ask for.
        if sizes[stream] != size_of(path) and copy_stream(host, status.attempt, stream, path):
            found.append(Growth(stream=stream, path=path, size=size_of(path)))
    return found


def copy_stream(host: Host, attempt: str, stream: Stream, path: Path) -> bool:
    """Brings the copy of one stream up to date; True when there was anything new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = at = size_of(path)
    while at - before < PER_TICK:
        chunk = host.read_log(attempt, stream, offset=at, limit=CHUNK)
        if chunk.restarted:
            path.replace(path.with_suffix(".replaced.log"))  # kept: it may be all that is left
            before, at = 0, 0
        elif not chunk.data:
            break
        write_at(path, at, chunk)
        at = chunk.end
        if len(chunk.data) < CHUNK and at >= chunk.size:
            break  # all there was; waiting for more would never end with a job that keeps talking
    return at > before


def end_of_logs(workspace: Workspace, attempt: str) -> str:
    """The end of what an attempt wrote, output before errors; progress bars as their last line."""
    said = []
    for stream in ("out", "err"):
        path = workspace.log(attempt, stream)
        if path.exists():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - CHUNK))
                said += file.read().decode("utf-8", "replace").split("\n")
    return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in said)


def size_of(path: Path) -> int:
    """How much of a stream is copied."""
    return path.stat().st_size if path.exists() else 0


def write_at(path: Path, at: int, chunk: LogChunk) -> None:
    """Puts bytes where they are on the host, so that the copy's size stays the cursor.

    The host gives up the middle of a very long log; then the gap is said where it begins.
    """
    gap = chunk.offset - at
    path.touch()  # never truncated: whoever runs the engine and a reader may copy at once
    with path.open("r+b") as file:
        if gap > len(GAP):
            file.seek(at)
            file.write(GAP)
        file.seek(chunk.offset)
        file.write(chunk.data)


def live_of(status: JobStatus, now: datetime) -> Live:
    """An observation as the fronts read it."""
    return Live(
        attempt=status.attempt,
        progress=status.progress,
        out_size=status.out_size,
        err_size=status.err_size,
        beat=status.beat,
        seen_at=now.isoformat(timespec="seconds"),
    )
