"""Lines of a growing file, at any size, without holding it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from runbook.tui.logfile import BLOCK, LogFile

if TYPE_CHECKING:
    from pathlib import Path


def lines_of(file: LogFile) -> list[str]:
    return [file.line(n) for n in range(file.line_count)]


def opened(path: Path) -> LogFile:
    file = LogFile(path)
    file.poll()
    return file


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\ntorn", ["one", "", "torn"]),
        (b" 10%\r 50%\r100%\r\nnext\n", ["100%", "next"]),
        (b"\xff\xfe broken\n", ["\ufffd\ufffd broken"]),
    ],
)
def test_lines(tmp_path: Path, data: bytes, expected: list[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(data)
    file = opened(path)
    assert lines_of(file) == expected
    file.close()


def test_every_line_is_found_when_blocks_cut_them_anywhere(tmp_path: Path) -> None:
    rows = [f"{n} " + "x" * (n * 37 % 1500) for n in range(900)]
    path = tmp_path / "log"
    path.write_text("\n".join(rows) + "\n")
    assert path.stat().st_size > 8 * BLOCK
    file = opened(path)
    assert lines_of(file) == rows
    file.close()


def test_growth_is_taken_up_byte_by_byte(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    file = opened(path)
    data = b"first\nsecond\nthird"
    with path.open("ab", buffering=0) as writer:
        for i in range(len(data)):
            writer.write(data[i : i + 1])
            assert file.poll()
            assert lines_of(file) == data[: i + 1].decode().splitlines()
    file.close()


def test_a_file_that_comes_later_is_found(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log")
    assert not file.poll()
    (tmp_path / "log").write_bytes(b"here\n")
    assert file.poll()
    assert lines_of(file) == ["here"]
    file.close()


@pytest.mark.parametrize("how", ["truncate", "replace"])
def test_a_file_begun_anew_is_read_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old line\n" * 100)
    file = opened(path)
    generation = file.generation
    if how == "truncate":
        path.write_bytes(b"new\n")
    else:
        (tmp_path / "aside").write_bytes(b"new\n")
        (tmp_path / "aside").replace(path)
    file.poll()
    assert file.generation > generation
    assert lines_of(file) == ["new"]
    file.close()


def test_a_removed_file_keeps_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"kept\n")
    file = opened(path)
    path.unlink()
    file.poll()
    assert lines_of(file) == ["kept"]
    file.close()


def test_an_endless_line_is_cut_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as writer:
        writer.truncate(1 << 30)  # sparse: a gigabyte of zero bytes, no newline
    file = LogFile(path)
    assert file.poll(budget=1 << 20)
    assert not file.complete
    assert file.line_count == 1
    assert len(file.line(0)) <= 8192
    file.close()


def test_a_million_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as writer:
        for base in range(0, 1_000_000, 10_000):
            writer.write(
                b"".join(b"line %07d of a build\n" % n for n in range(base, base + 10_000))
            )
    began = time.process_time()
    file = LogFile(path)
    while file.poll() or not file.complete:
        pass
    assert file.line_count == 1_000_000
    for n in (0, 1, 499_999, 700_000, 999_999):
        assert file.line(n) == f"line {n:07d} of a build"
    assert time.process_time() - began < 3
    assert len(file._before) < 1000
    file.close()
    os.truncate(path, 0)
