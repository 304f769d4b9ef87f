"""Copies of job output: resumed by size, gaps kept in place, a replaced log never mixed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remote import LogChunk
from runbook.engine.logs import GAP, copy_stream

if TYPE_CHECKING:
    from pathlib import Path


class Source:
    """A log on a host: its bytes from `kept` on, and whether it was replaced."""

    def __init__(self, data: bytes, *, head: int = 0, tail: int = 0) -> None:
        self.data, self.head, self.tail, self.limit = data, head, tail, 7

    def read_log(self, _attempt: str, _stream: str, *, offset: int, limit: int) -> LogChunk:
        restarted = offset > len(self.data)
        at = 0 if restarted else offset
        if self.tail and self.head <= at < len(self.data) - self.tail:
            at = len(self.data) - self.tail
        end = at + min(limit, self.limit)
        if self.tail and at < self.head:
            end = min(end, self.head)
        return LogChunk(
            data=self.data[at:end],
            offset=at,
            size=len(self.data),
            file_id="1",
            restarted=restarted,
        )


def test_a_copy_grows_by_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "a.out.log"
    source = Source("höhe über alles\n".encode())
    assert copy_stream(source, "a", "out", path)  # type: ignore[arg-type]
    assert path.read_bytes() == source.data
    assert not copy_stream(source, "a", "out", path)  # type: ignore[arg-type]
    source.data += b"more\n"
    assert copy_stream(source, "a", "out", path)  # type: ignore[arg-type]
    assert path.read_bytes() == source.data


def test_a_middle_that_the_host_gave_up_is_said_once_and_keeps_offsets(tmp_path: Path) -> None:
    path = tmp_path / "a.out.log"
    source = Source(b"head" + b"x" * 500 + b"tail", head=4, tail=4)
    copy_stream(source, "a", "out", path)  # type: ignore[arg-type]
    copied = path.read_bytes()
    assert len(copied) == len(source.data)
    assert copied.startswith(b"head" + GAP)
    assert copied.endswith(b"tail")
    assert not copy_stream(source, "a", "out", path)  # type: ignore[arg-type]


def test_a_replaced_log_starts_a_new_copy_and_the_old_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.out.log"
    copy_stream(Source(b"a long first log"), "a", "out", path)  # type: ignore[arg-type]
    copy_stream(Source(b"short"), "a", "out", path)  # type: ignore[arg-type]
    assert path.read_bytes() == b"short"
    assert path.with_suffix(".replaced.log").read_bytes() == b"a long first log"
