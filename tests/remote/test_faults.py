"""Kills, reboots, torn files and full disks: every attempt still gets a definite answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from remote import HostFenceHeld, LaunchFailed, Unreachable
from tests.support.deadline import wait_for

LAUNCH_POINTS = (
    "launch.claimed", "launch.before_publish", "launch.published", "launch.spawned",
    "launch.started", "supervise.locked",
)  # fmt: skip


@pytest.mark.parametrize("point", LAUNCH_POINTS)
def test_a_launch_killed_anywhere_is_repeated_without_a_second_start(bench, point):
    script = f"echo one >> {bench.root}/starts; sleep 60"
    # A dead launcher's answer is lost; a dead supervisor's launcher says that nothing started.
    expected = Unreachable if point.startswith("launch") else LaunchFailed
    with pytest.raises(expected):
        bench.make_host(crash_at=point).launch(bench.spec("a1", script))
    assert bench.launch("a1", script).state == "running"
    assert [path.name for path in bench.job("a1").parent.iterdir()] == ["a1"]
    starts = bench.root / "starts"
    wait_for(lambda: starts.exists() and starts.read_text(), what="the payload to start")
    bench.host.stop("a1", grace_s=1)
    assert starts.read_text() == "one\n"


def test_a_supervisor_killed_before_its_payload_is_lost_not_forgotten(bench):
    bench.make_host(crash_at="supervise.started").launch(bench.spec("a1", "echo ran"))
    wait_for(lambda: bench.status("a1").state == "lost", what="the loss to show")
    found = bench.launch("a1", "echo ran")
    assert (found.state, found.cls) == ("lost", "lost_supervisor_died")
    assert "no process" in found.reason
    assert bench.text("a1") == ""
    assert bench.launch("a2", "echo next", generation=2).state in ("running", "exited")


def test_a_killed_supervisor_leaves_a_payload_that_is_found_and_ended(bench):
    bench.launch("a1", "sleep 300", generation=1)
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    found = bench.ended("a1")
    assert (found.state, found.cls) == ("lost", "lost_supervisor_died")
    assert [one["command"] for one in found.evidence["survivors"]]
    with pytest.raises(HostFenceHeld):
        bench.launch("a2", "echo two", generation=2)
    report = bench.host.stop("a1", grace_s=1)
    assert report.state == "stopped"
    assert bench.processes() == []
    assert bench.launch("a2", "echo two", generation=2).state in ("running", "exited")


def test_a_stopped_supervisor_does_not_stop_a_stop(bench):
    bench.launch("a1", "sleep 300")
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    assert bench.status("a1").state == "running", "silence is no death"
    report = bench.host.stop("a1", grace_s=0.2)
    assert report.state == "stopped"
    assert bench.processes() == []
    assert bench.supervisors() == []


def test_a_killed_payload_is_a_signal(bench):
    pid = bench.launch("a1", "exec sleep 300").pid
    os.kill(pid, signal.SIGKILL)
    ended = bench.ended("a1")
    assert (ended.cls, ended.signal) == ("signal", signal.SIGKILL)


def test_killed_between_the_payloads_end_and_the_record(bench):
    bench.make_host(crash_at="supervise.payload_ended").launch(bench.spec("a1", "exit 0"))
    found = bench.ended("a1")
    assert (found.state, found.cls) == ("lost", "lost_supervisor_died")


@pytest.mark.parametrize("content", [b"", b"   ", b"{", b'{"attempt": ', b"[]", b"\xff\xfe", b"{}"])
def test_an_unreadable_record_is_no_result(bench, content):
    bench.launch("a1", "true")
    bench.ended("a1")
    (bench.job("a1") / "exit.json").write_bytes(content)
    found = bench.status("a1")
    assert found.state == "lost"
    assert found.exit_code is None
    assert found.evidence["unreadable"].startswith("exit.json")


def test_garbage_in_the_other_files_stops_no_poll(bench):
    bench.launch("a1", "echo ready; sleep 60")
    bench.said("a1", "ready")
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGSTOP)  # its next beat would mend one of them
    for name in ("ident.json", "progress.jsonl", "beat"):
        (bench.job("a1") / name).write_bytes(b"\xff{\n")
    found = bench.status("a1")
    assert (found.state, found.beat, found.progress) == ("running", 0, None)


def test_frozen_beats_change_nothing(bench):
    bench.launch("a1", "sleep 300")
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGSTOP)
    beat = bench.status("a1").beat
    assert bench.status("a1").beat == beat
    assert bench.status("a1").state == "running"
    os.kill(supervisor, signal.SIGCONT)
    wait_for(lambda: bench.status("a1").beat > beat, what="the next beat")


def test_a_kill_for_memory_is_told_by_the_kernels_counter(bench, tmp_path):
    counter = tmp_path / "proc" / "vmstat"
    counter.parent.mkdir()
    counter.write_text("nr_free_pages 1\noom_kill 3\n")
    bench.host = bench.make_host(facts_root=str(tmp_path))
    bench.launch("a1", f"echo 'oom_kill 4' > {counter}; kill -KILL $$")
    ended = bench.ended("a1")
    assert (ended.cls, ended.signal) == ("oom", signal.SIGKILL)
    assert ended.evidence["oom"]["counters_grown"] == ["machine"]


def test_a_payload_over_its_memory_group_is_an_oom(bench):
    base = next(
        (path for path in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
         if (path / "cgroup.procs").exists()), None,
    )  # fmt: skip
    group = (base or Path("/none")) / f"remote-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
        (group / limit).write_text("40M")
    except OSError:
        pytest.skip("no memory group can be made here")
    try:
        eat = f'{sys.executable} -S -c "bytearray(400 << 20)"'
        bench.launch("a1", f"echo $$ > {group}/cgroup.procs; {eat}; exit $?")
        ended = bench.ended("a1")
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), what="an empty group")
        group.rmdir()
    assert ended.cls == "oom"
    assert ended.evidence["oom"]["counters_grown"]


def facts_root(folder: Path, *, boot: str, machine: str = "m1") -> str:
    for name, text in (("proc/sys/kernel/random/boot_id", boot), ("etc/machine-id", machine)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return str(folder)


def test_a_reboot_or_a_rebuild_loses_what_ran(bench, tmp_path):
    before = bench.make_host(facts_root=facts_root(tmp_path / "1", boot="b1"))
    before.launch(bench.spec("a1", "sleep 300"))
    first = before.last_identity
    after = bench.make_host(facts_root=facts_root(tmp_path / "2", boot="b2"))
    assert after.poll(["a1"])["a1"].state == "running", "a held lock outweighs any file"
    bench.clean()
    wait_for(lambda: not bench.processes(), what="all to be gone")
    wait_for(lambda: after.poll(["a1"])["a1"].state == "lost", what="the loss to show")
    assert after.poll(["a1"])["a1"].cls == "lost_reboot"
    assert after.last_identity.epoch != first.epoch
    rebuilt = bench.make_host(facts_root=facts_root(tmp_path / "3", boot="b2", machine="m2"))
    assert rebuilt.poll(["a1"])["a1"].cls == "lost_rebuilt"
    assert rebuilt.launch(bench.spec("a2", "true", generation=2)).state in ("running", "exited")


def test_the_directory_is_gone_but_the_process_lives(bench):
    bench.launch("a1", "sleep 300")
    bench.job("a1").rename(bench.root / "elsewhere")
    found = bench.status("a1")
    assert (found.state, found.cls) == ("lost", "lost_evidence_gone")
    assert found.evidence["survivors"]
    report = bench.host.stop("a1", grace_s=1)
    assert report.state == "stopped"
    assert bench.processes() == []


def test_starting_and_burning_race_to_one_winner(bench):
    bench.host.identity()
    for turn in range(4):
        attempt, marks = f"a{turn}", []
        spec = bench.spec(attempt, f"echo ran >> {bench.root}/ran-{turn}", generation=turn + 1)

        def start(spec=spec, marks=marks) -> None:
            marks.append(("start", bench.make_host().launch(spec).state))

        def burn(attempt=attempt, marks=marks) -> None:
            marks.append(("burn", bench.make_host().burn(attempt)))

        threads = [threading.Thread(target=one) for one in (start, burn)]
        for thread in threads[:: 1 if turn % 2 else -1]:
            thread.start()
        for thread in threads:
            thread.join()
        burned = dict(marks)["burn"]
        final = bench.ended(attempt)
        assert final.state == ("burned" if burned else "exited"), marks
        assert (bench.root / f"ran-{turn}").exists() is not burned


def test_an_attempt_that_never_started_makes_way_for_the_next(bench):
    with pytest.raises(Unreachable):
        bench.make_host(crash_at="launch.published").launch(bench.spec("a1", "echo one"))
    assert bench.status("a1").state == "published"
    assert bench.launch("a2", "sleep 300", generation=2).state == "running"
    assert bench.status("a1").state == "burned"
    assert bench.launch("a1", "echo one").state == "burned", "it cannot come back"
    assert bench.text("a1") == ""


def test_a_stop_from_an_older_generation_is_not_heard(bench):
    bench.launch("a1", "echo ready; sleep 60", generation=5)
    bench.said("a1", "ready")
    (bench.job("a1") / "ctl" / "stop").write_text(json.dumps({"generation": 4, "grace_s": 0}))
    [supervisor] = bench.supervisors()
    beat = bench.status("a1").beat
    os.kill(supervisor, signal.SIGUSR1)  # look now
    wait_for(lambda: bench.status("a1").beat > beat + 1, what="two beats")
    assert bench.status("a1").state == "running"
    (bench.job("a1") / "ctl" / "stop").write_text(json.dumps({"generation": 5, "grace_s": 1}))
    assert bench.ended("a1").cls == "stopped"


@pytest.fixture
def small_disk(tmp_path):
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(where)], capture_output=True,
        check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        if os.environ.get("CI"):
            pytest.fail(f"cannot mount a small disk: {mounted.stderr!r}")
        pytest.skip("mounting a small disk needs root")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


def fill(where: Path) -> None:
    with (where / "ballast").open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_the_exit_code_is_kept_on_a_full_disk(bench, small_disk, tmp_path):
    bench.root = small_disk / "root"
    bench.host = bench.make_host()
    bench.launch("a1", f"echo go; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 5")
    bench.said("a1", "go")
    fill(small_disk)
    (tmp_path / "go").touch()
    ended = bench.ended("a1")
    assert ended.exit_code == 5
    assert ended.cls == "disk_full"
    assert ended.evidence["disk"]["free_at_job_dir"] == 0


def test_a_running_job_is_stopped_on_a_full_disk(bench, small_disk):
    bench.root = small_disk / "root"
    bench.host = bench.make_host()
    bench.launch("a1", "sleep 300")
    fill(small_disk)
    assert bench.host.stop("a1", grace_s=0.2).state == "stopped"
    assert bench.status("a1").state == "exited"
    assert bench.processes() == []


def test_a_launch_on_a_full_disk_starts_nothing_and_can_be_repeated(bench, small_disk):
    bench.root = small_disk / "root"
    bench.host = bench.make_host()
    bench.host.identity()
    fill(small_disk)
    with pytest.raises(LaunchFailed) as failed:
        bench.launch("a1", "echo ran")
    assert failed.value.kind == "disk_full"
    (small_disk / "ballast").unlink()
    bench.launch("a1", "echo ran")
    assert bench.ended("a1").cls == "ok"


@pytest.mark.parametrize("room", [1 << 15, 1 << 16, 1 << 17])
def test_a_launch_that_runs_out_of_room_half_way_leaves_a_clear_state(bench, small_disk, room):
    bench.root = small_disk / "root"
    bench.host = bench.make_host()
    bench.host.identity()
    fill(small_disk)
    os.truncate(small_disk / "ballast", (small_disk / "ballast").stat().st_size - room)
    try:
        bench.launch("a1", "echo ran")
    except LaunchFailed:
        assert bench.status("a1").state in ("absent", "published")
    (small_disk / "ballast").unlink()
    assert bench.launch("a1", "echo ran").state in ("running", "exited")
    assert bench.ended("a1").cls in ("ok", "disk_full", "never_started")
    assert bench.text("a1") in ("ran\n", "")


def test_a_command_that_leaves_a_child_on_our_pipes_is_given_up_in_time(bench):
    """The child is not of its group, holds its output open, and lives on."""
    pid = bench.root.parent / "pid"
    with pytest.raises(Unreachable, match="no answer in 3 s"):
        bench.host.transport.run(
            ["sh", "-c", f"setsid sh -c 'echo $$ > {pid}; sleep 300' & wait"], timeout=3
        )
    left = wait_for(lambda: pid.exists() and pid.read_text(), what="the number of the child")
    os.kill(int(left), signal.SIGKILL)
