"""Local copies of job output. The copy's size is the cursor: a crash neither skips nor repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.views import Live

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from remote import Host, JobStatus
    from remote.model import Stream
    from runbook.workspace import Workspace

STREAMS: tuple[Stream, ...] = ("out", "err", "progress")
CHUNK = 1 << 18
PER_TICK = 1 << 22
"""Bytes of one stream copied in one tick, so that one chatty job cannot starve the others."""


def mirror(
    host: Host, workspace: Workspace, status: JobStatus, *, grew: Callable[[str, Path, int], None]
) -> None:
    """Copies what is new in the streams of one attempt."""
    sizes = {"out": status.out_size, "err": status.err_size, "progress": status.progress_size}
    for stream in STREAMS:
        path = workspace.log(status.attempt, stream)
        if sizes[stream] and copy_stream(host, status.attempt, stream, path):
            grew(stream, path, path.stat().st_size)


def copy_stream(host: Host, attempt: str, stream: Stream, path: Path) -> bool:
    """Appends the new bytes of one stream to `path`; True when there were any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    copied = 0
    with path.open("ab") as file:
        while copied < PER_TICK:
            chunk = host.read_log(attempt, stream, offset=file.tell(), limit=CHUNK)
            if chunk.restarted:
                file.write(b"\n[the stream was cut or replaced on the host; it goes on here]\n")
                break
            if not chunk.data:
                break
            file.write(chunk.data)
            copied += len(chunk.data)
    return copied > 0


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
