"""Old jobs shrink to what one still asks about; nothing else is touched."""

from __future__ import annotations

import os
import signal

from tests.support.deadline import wait_for

LONG = "seq 1 200000; echo the end; echo '{\"a\": 1}' > $RUNBOOK_OUT; exit 3"


def test_an_old_job_keeps_its_outcome_and_the_ends_of_its_logs(bench):
    bench.launch("a1", LONG)
    before = bench.ended("a1")
    whole = bench.host.read_log("a1", "out", offset=0, limit=4 << 20)
    [would] = bench.host.collect_garbage(["a1"], keep=0, older_than_s=0, only_tell=True)
    assert bench.host.read_log("a1", "out", offset=0, limit=4 << 20).data == whole.data
    [gone] = bench.host.collect_garbage(["a1"], keep=0, older_than_s=0)
    assert (would.attempt, would.left) == (gone.attempt, gone.left)
    assert abs(would.freed_bytes - gone.freed_bytes) < 20_000
    assert gone.attempt == "a1"
    assert gone.freed_bytes > 1_000_000
    after = bench.status("a1")
    assert (after.state, after.cls, after.exit_code) == ("exited", "exit", 3)
    assert (after.out_size, after.ended_at) == (before.out_size, before.ended_at)
    assert bench.host.read_out("a1") == {"a": 1}
    left = bench.host.read_log("a1", "out", offset=0, file_id=whole.file_id, limit=4 << 20)
    assert not left.restarted
    assert left.offset > 1_000_000, "offsets stay"
    assert left.data == whole.data[left.offset :]
    assert 64 << 10 <= len(left.data) <= 80 << 10
    assert (bench.job("a1") / "out.log").stat().st_blocks * 512 < 100_000
    assert "kept" in (bench.job("a1") / "tombstone").read_text()
    assert bench.launch("a1", LONG).state == "exited", "it is still known, and not run again"
    assert bench.host.collect_garbage(["a1"], keep=0, older_than_s=0) == []


def test_what_is_live_uncollected_young_or_among_the_newest_stays(bench):
    for number in range(4):
        bench.launch(f"a{number}", LONG, generation=number + 1, task=f"t{number}")
        bench.ended(f"a{number}")
    bench.launch("live", "seq 1 200000; sleep 300", task="live")
    everything = ["a0", "a1", "a2", "live", "never-heard-of"]
    sizes = {path: path.stat().st_blocks for path in bench.root.rglob("out.log")}
    assert bench.host.collect_garbage(everything, keep=0, older_than_s=3600) == []
    for path, blocks in sizes.items():
        assert path.stat().st_blocks >= blocks
    gone = bench.host.collect_garbage(everything, keep=1, older_than_s=0)
    assert {one.attempt for one in gone} == {"a0", "a1"}, "a2 is the newest, a3 was not collected"
    assert bench.status("live").state == "running"
    assert (bench.job("live") / "sup.py").exists()


def test_a_lost_job_with_a_process_left_is_no_garbage(bench):
    bench.launch("a1", "seq 1 200000; sleep 300")
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: bench.status("a1").state == "lost", what="the loss to show")
    assert bench.host.collect_garbage(["a1"], keep=0, older_than_s=0) == []
    assert (bench.job("a1") / "ident.json").exists()


def test_what_the_payload_left_is_named_and_stays(bench, tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * 200_000)
    bench.launch(
        "a1",
        f"echo data > model.bin; mkdir ckpt; ln -s {outside} err2; rm $RUNBOOK_JOB_DIR/err.log; "
        f"ln -s {outside} $RUNBOOK_JOB_DIR/err.log",
    )
    bench.ended("a1")
    [gone] = bench.host.collect_garbage(["a1"], keep=0, older_than_s=0)
    assert gone.left == ("ckpt", "err2", "model.bin")
    assert (bench.job("a1") / "model.bin").read_text() == "data\n"
    assert outside.stat().st_blocks * 512 >= 200_000
    assert outside.read_bytes() == b"x" * 200_000


def test_a_link_in_place_of_a_job_is_not_followed(bench, tmp_path):
    bench.launch("a1", LONG)
    bench.ended("a1")
    moved = tmp_path / "moved"
    bench.job("a1").rename(moved)
    bench.job("a1").symlink_to(moved)
    assert bench.host.collect_garbage(["a1"], keep=0, older_than_s=0) == []
    assert (moved / "sup.py").exists()
