"""Logs are bytes with offsets: nothing is skipped or repeated without a word."""

from __future__ import annotations

import os

from tests.support.deadline import wait_for


def test_reading_on_by_offset_gives_every_byte_once(bench):
    bench.launch("a1", r"printf '\377\376caf\303\251 %s\n' one two three")
    bench.ended("a1")
    whole = (bench.job("a1") / "out.log").read_bytes()
    assert b"\xff\xfecaf\xc3\xa9" in whole
    got, offset = b"", 0
    while True:
        chunk = bench.host.read_log("a1", "out", offset=offset, limit=7)
        assert not chunk.restarted
        if not chunk.data:
            break
        got += chunk.data
        offset = chunk.end
    assert got == whole
    assert offset == chunk.size


def test_a_truncated_or_replaced_log_says_so(bench):
    bench.launch("a1", "echo 0123456789")
    bench.ended("a1")
    first = bench.host.read_log("a1", "out", offset=0)
    path = bench.job("a1") / "out.log"
    os.truncate(path, 4)
    again = bench.host.read_log("a1", "out", offset=first.end)
    assert again.restarted
    assert (again.offset, again.data) == (0, b"0123")
    path.rename(path.with_suffix(".old"))
    path.write_bytes(b"another and longer file\n")
    other = bench.host.read_log("a1", "out", offset=4, file_id=first.file_id)
    assert other.restarted
    assert other.data.startswith(b"another")


def test_a_log_that_is_not_there_yet_is_empty(bench):
    chunk = bench.host.read_log("a1", "out", offset=0)
    assert (chunk.data, chunk.size, chunk.restarted) == (b"", 0, False)


SIZE = int(os.environ.get("RUNBOOK_LOG_BYTES", 40 << 20))
HEAD, TAIL = (1 << 20, 2 << 20) if SIZE < 1 << 30 else (16 << 20, 48 << 20)


def test_a_huge_log_keeps_its_head_and_tail_and_gives_the_rest_back(bench):
    bench.host = bench.make_host(log_head=HEAD, log_tail=TAIL)
    bench.launch(
        "a1",
        f"echo first; head -c {SIZE} /dev/zero | tr '\\0' x; "
        "until grep -q out $RUNBOOK_JOB_DIR/dropped.json; do sleep 0.1; done; echo last; sleep 1.5",
    )
    bench.ended("a1", limit_s=100 + SIZE / 10e6)
    info = (bench.job("a1") / "out.log").stat()
    assert info.st_size >= SIZE
    assert info.st_blocks * 512 < HEAD + 3 * TAIL + (1 << 20), "the middle takes no room"
    head = bench.host.read_log("a1", "out", offset=0, limit=HEAD)
    assert head.data.startswith(b"first\n")
    assert b"\0" not in head.data
    dropped = bench.status("a1").evidence["log_dropped"]["out"]
    rest = bench.host.read_log("a1", "out", offset=dropped[0] + 1, limit=8 << 20)
    assert rest.offset == dropped[1], "the gap shows"
    assert b"\0" not in rest.data
    end = bench.host.read_log("a1", "out", offset=info.st_size - 6)
    assert end.data == b"xlast\n"


def test_progress_is_followed_like_a_log(bench):
    bench.launch("a1", 'echo \'{"done": 1}\' >> "$RUNBOOK_PROGRESS"; sleep 60')
    chunk = wait_for(
        lambda: (found := bench.host.read_log("a1", "progress", offset=0)).data and found,
        what="a progress line",
    )
    assert chunk.data == b'{"done": 1}\n'
