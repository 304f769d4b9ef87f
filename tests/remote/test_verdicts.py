"""A verdict needs two facts that do not depend on each other; a clock is none."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from remote import HostFenceHeld
from tests.support.deadline import wait_for


def machine(folder: Path, *, boot: str = "b1", identity: str = "m1", pid1: int = 7) -> str:
    """A facts root: which machine this is, and which boot of it."""
    fields = " ".join(["S", *["0"] * 18, str(pid1), "0"])
    for name, text in (
        ("proc/sys/kernel/random/boot_id", boot),
        ("etc/machine-id", identity),
        ("proc/1/stat", f"1 (init) {fields}"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")
    return str(folder)


@pytest.fixture
def lost(bench, tmp_path):
    """An attempt whose supervisor and processes are gone without a record."""
    host = bench.make_host(facts_root=machine(tmp_path / "then"))
    host.launch(bench.spec("a1", "sleep 300"))
    bench.clean()
    wait_for(lambda: not bench.processes(), what="all to be gone")
    wait_for(lambda: host.poll(["a1"])["a1"].state == "lost", what="the loss to show")
    return bench


@pytest.mark.parametrize(
    ("now", "cls", "fact"),
    [
        ({}, "lost_supervisor_died", "its supervisor's process is gone"),
        ({"boot": "b2"}, "lost_reboot", "boot id was b1, is b2"),
        ({"pid1": 8}, "lost_reboot", "start of PID 1 was 7, is 8"),
        ({"identity": "m2"}, "lost_rebuilt", "machine id was m1, is m2"),
        ({"identity": "m2", "boot": "b2"}, "lost_rebuilt", "machine id was m1, is m2"),
    ],
)
def test_each_loss_names_two_facts(lost, tmp_path, now, cls, fact):
    host = lost.make_host(facts_root=machine(tmp_path / "now", **now))
    found = host.poll(["a1"])["a1"]
    assert (found.state, found.cls) == ("lost", cls)
    assert found.evidence["facts"][0] == "its lock is free"
    assert fact in found.evidence["facts"]


def test_another_boot_id_alone_is_no_reboot(bench, tmp_path):
    """The lock is held, or its processes live: whatever a file says, they were not rebooted."""
    bench.make_host(facts_root=machine(tmp_path / "1")).launch(bench.spec("a1", "sleep 300"))
    later = bench.make_host(facts_root=machine(tmp_path / "2", boot="b2"))
    assert later.poll(["a1"])["a1"].state == "running"
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: later.poll(["a1"])["a1"].state == "lost", what="the loss to show")
    found = later.poll(["a1"])["a1"]
    assert found.cls == "lost_supervisor_died"
    assert found.evidence["survivors"]
    with pytest.raises(HostFenceHeld):
        later.launch(bench.spec("a2", "true", generation=2))


def test_a_free_lock_alone_is_no_death(bench):
    bench.launch("a1", "echo up; sleep 300")
    bench.said("a1", "up")
    lock = bench.job("a1") / "lock"
    lock.rename(lock.with_name("lock.old"))
    lock.touch()
    found = bench.status("a1")
    assert found.state == "running"
    assert "no verdict" in found.reason
    with pytest.raises(HostFenceHeld):
        bench.launch("a2", "true", generation=2)


def test_a_workspace_that_is_gone_leaves_nothing_to_find(bench):
    bench.launch("a1", "true")
    bench.ended("a1")
    wait_for(lambda: not bench.supervisors(), what="the supervisor to end")
    shutil.rmtree(bench.root / "w")
    assert bench.status("a1").state == "absent"


def test_a_survivor_of_a_finished_job_keeps_the_fence(bench):
    """As when the kernel cannot end a process: the record says so, and it is looked at again."""
    bench.launch("a1", "true")
    bench.ended("a1")
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    record = bench.job("a1") / "exit.json"
    ended = json.loads(record.read_text())
    ended["evidence"]["survivors"] = [{"pid": os.getpid(), "start_ticks": int(stat[19])}]
    record.write_text(json.dumps(ended))
    assert bench.status("a1").evidence["still_there"]
    with pytest.raises(HostFenceHeld):
        bench.launch("a2", "true", generation=2)
    ended["evidence"]["survivors"] = [{"pid": os.getpid(), "start_ticks": 1}]
    record.write_text(json.dumps(ended))
    assert bench.launch("a2", "true", generation=2).state in ("running", "exited")


@pytest.mark.parametrize("jump", [-3600, 10 * 365 * 86400])
def test_a_clock_that_jumps_changes_nothing(bench, jump, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text(str(jump))
    bench.launch("a1", "sleep 300", time_limit_s=600)
    bench.launch("b1", "exit 4", task="other")
    bench.ended("b1")
    jumped = bench.make_host(clock_file=str(clock))
    found = jumped.poll(["a1", "b1"])
    assert (found["a1"].state, found["b1"].exit_code) == ("running", 4)
    with pytest.raises(HostFenceHeld):
        jumped.launch(bench.spec("a2", "true", generation=2))
    assert jumped.stop("a1", grace_s=1).state == "stopped"
    assert jumped.launch(bench.spec("a2", "sleep 0.3", generation=2)).state in (
        "running", "exited",
    )  # fmt: skip
    ended = bench.ended("a2")
    assert ended.cls == "ok"
    assert 0 < json.loads((bench.job("a2") / "exit.json").read_text())["duration_s"] < 60


def test_the_facts_show_how_far_the_clock_is_off(bench, tmp_path):
    (tmp_path / "clock").write_text("3600")
    clock = bench.make_host(clock_file=str(tmp_path / "clock")).facts()["clock"]
    assert abs(clock["offset_s"] - 3600) <= clock["error_s"] + 0.1
    assert clock["error_s"] < 60


def test_a_client_that_knows_nothing_finds_every_job_and_every_stray(bench):
    bench.launch("a1", "exit 3", task="one")
    bench.ended("a1")
    bench.launch("a2", "sleep 300", task="two", generation=4, resources=["gpu:3"], ports=[39995])
    bench.launch("a3", "sleep 300", task="three")
    [supervisor] = [pid for pid in bench.supervisors() if str(bench.job("a3")) in command(pid)]
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: bench.status("a3").state == "lost", what="the loss to show")
    jobs, strays = bench.make_host().jobs()
    known = {one.status.attempt: one for one in jobs}
    assert {name: one.status.state for name, one in known.items()} == {
        "a1": "exited", "a2": "running", "a3": "lost",
    }  # fmt: skip
    adopted = known["a2"]
    assert (adopted.task, adopted.generation) == ("two", 4)
    assert (adopted.resources, adopted.ports) == (("gpu:3",), (39995,))
    assert {stray["attempt"] for stray in strays} == {"a3"}
    assert {stray["pid"] for stray in strays} == set(bench.processes("a3"))
    assert bench.make_host(workspace="other").jobs() == ([], [])


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


def test_the_record_tells_what_the_payload_used(bench):
    bench.launch("a1", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
    usage = bench.ended("a1").evidence["usage"]
    assert usage["cpu_s"] > 0
    assert usage["max_rss_bytes"] > 100_000
