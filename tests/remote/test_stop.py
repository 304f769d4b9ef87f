"""A stop is done when nothing is left: no process, no port, no GPU memory, no shared memory."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from pathlib import Path
from uuid import uuid4

import pytest

from remote import RemoteError, StaleGeneration
from tests.support.deadline import wait_for

SHM = Path("/dev/shm")


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", textwrap.dedent(code))


@pytest.fixture
def smi(tmp_path):
    """An nvidia-smi of one GPU, whose users are the lines of a file: pid, MiB, calls to last."""
    users = tmp_path / "users"
    users.touch()
    program = tmp_path / "nvidia-smi"
    program.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable} -S
        import fcntl, os, sys
        words = " ".join(sys.argv)
        if "query-gpu=index,uuid" in words and "name" not in words:
            print("0, GPU-a")
        elif "query-gpu=index,name" in words:
            print("0, Fake H1, GPU-a, 1000, 10, 1.2, 9.0, 00000000:01:00.0")
        elif "query-compute-apps" in words:
            file = open({str(users)!r}, "r+")
            fcntl.flock(file, fcntl.LOCK_EX)  # the supervisor and a stop may ask at once
            was, kept = file.read(), ""
            for line in was.splitlines():
                pid, used, calls = line.split()
                print(f"{{pid}}, GPU-a, {{used}}, /usr/bin/python3")
                if not os.path.exists("/proc/" + pid):
                    calls = int(calls) - 1
                kept += f"{{pid}} {{used}} {{calls}}\\n" if int(calls) > 0 else ""
            if kept != was:
                file.seek(0)
                file.truncate()
                file.write(kept)
        elif "topo" in words:
            print("        GPU0    GPU1    NIC0    CPU Affinity")
            print("GPU0     X      NV18    PIX     0")
            print("GPU1    NV18     X      SYS     1")
        else:
            print("| NVIDIA-SMI 1.2   Driver Version: 1.2   CUDA Version: 12.9  |")
        """)
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def smi_users(smi):
    return smi.parent / "users"


def test_a_stop_waits_until_the_driver_has_taken_the_memory_back(bench, smi, smi_users):
    bench.host = bench.make_host(nvidia_smi=str(smi))
    bench.launch(
        "a1", f"echo $$ 7000 4 > {smi_users}; echo up; exec sleep 300", resources=["gpu:0"]
    )
    bench.said("a1", "up")
    report = bench.host.stop("a1", grace_s=1)
    assert report.state == "stopped", report
    assert smi_users.read_text() == "", "asked until it was gone"
    assert bench.host.resources() == []


def test_gpu_memory_that_stays_is_named_with_its_size(bench, smi, smi_users):
    bench.host = bench.make_host(nvidia_smi=str(smi), gpu_wait_s=0.3)
    bench.launch("a1", f"echo $$ 7000 99999 > {smi_users}; echo up; exec sleep 300")
    bench.said("a1", "up")
    pid = int(smi_users.read_text().split()[0])
    report = bench.host.stop("a1", grace_s=1)
    assert report.state == "stop_incomplete"
    [survivor] = report.survivors
    assert survivor["pid"] == pid
    assert survivor["holds"] == [{"gpu": 0, "bytes": 7000 << 20}]


def test_another_jobs_gpu_memory_is_not_ours(bench, smi, smi_users):
    smi_users.write_text(f"{os.getpid()} 500 99999\n")
    bench.host = bench.make_host(nvidia_smi=str(smi), gpu_wait_s=0.3)
    bench.launch("a1", "sleep 300", resources=["gpu:0"])
    assert bench.host.stop("a1", grace_s=1).state == "stopped"


def test_facts_tell_who_uses_a_gpu_and_how_gpus_are_connected(bench, smi, smi_users):
    smi_users.write_text(f"{os.getpid()} 500 99999\n")
    facts = bench.make_host(nvidia_smi=str(smi)).facts()
    [gpu] = facts["gpus"]
    assert gpu["processes"] == [
        {"pid": os.getpid(), "command": "/usr/bin/python3", "bytes": 500 << 20}
    ]
    assert facts["gpu_topology"] == {"GPU0": {"GPU1": "NV18"}, "GPU1": {"GPU0": "NV18"}}
    assert facts["cuda"]["driver"] == "12.9"


def test_a_gpu_that_somebody_uses_is_not_free(bench, smi, smi_users):
    smi_users.write_text(f"{os.getpid()} 500 99999\n")
    host = bench.make_host(nvidia_smi=str(smi))
    free, busy, absent = host.check(
        [{"gpu_free": {"gpus": [0]}}, {"gpu_free": {"gpus": [0], "max_bytes": 1 << 20}},
         {"gpu_free": {"gpus": [0, 7]}}]
    )  # fmt: skip
    assert [one.verdict for one in (free, busy, absent)] == ["pass", "fail", "fail"]
    assert busy.evidence["users"][0]["pid"] == os.getpid()
    assert absent.evidence["gpus"] == [7]


SEGMENT = """
    import mmap, os, sys, time
    for name in sys.argv[1:]:
        fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, 4096)
        mmap.mmap(fd, 4096)[0:1] = b"x"
        kept = mmap.mmap(fd, 4096)
        os.close(fd)
        globals()[name] = kept
    print("mapped", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def segment():
    """A name at the top of shared memory that nobody else uses; gone afterwards."""
    path = SHM / f"sglang_loads_test_{uuid4().hex}.shm"
    yield path
    path.unlink(missing_ok=True)


def test_shared_memory_that_a_job_left_goes_with_it(bench, segment):
    bench.launch("a1", "", argv=(*python(SEGMENT), str(segment)))
    bench.said("a1", "mapped")
    report = bench.host.stop("a1", grace_s=1)
    assert report.state == "stopped"
    assert report.evidence["shm_removed"] == [segment.name]
    assert not segment.exists()


def test_shared_memory_of_a_job_whose_supervisor_died_goes_too(bench, segment):
    bench.launch("a1", "", argv=(*python(SEGMENT), str(segment)))
    bench.said("a1", "mapped")
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: bench.status("a1").state == "lost", what="the loss to show")
    assert bench.host.stop("a1", grace_s=1).evidence["shm_removed"] == [segment.name]
    assert not segment.exists()


SEMAPHORE = """
import sys, time, _multiprocessing
# Nobody tracks it: as when the whole group of a server is killed.
lock = _multiprocessing.SemLock(1, 1, 1, "/" + sys.argv[1], False)
print("made", flush=True)
time.sleep(300)
"""


def test_a_semaphore_goes_with_its_job_though_it_was_made_under_another_name(bench):
    name = f"runbook-{uuid4().hex}"
    path = SHM / f"sem.{name}"
    bench.launch("a1", "", argv=(*python(SEMAPHORE), name))
    bench.said("a1", "made")
    assert path.exists()
    assert bench.host.stop("a1", grace_s=1).evidence["shm_removed"] == [path.name]
    assert not path.exists()


def test_what_was_there_before_or_lies_in_a_folder_stays(bench, segment):
    segment.write_bytes(b"older" * 1000)
    folder = SHM / f"model-{uuid4().hex}"
    folder.mkdir()
    weights = folder / "weights"
    try:
        bench.launch("a1", "", argv=(*python(SEGMENT), str(segment), str(weights)))
        bench.said("a1", "mapped")
        assert bench.host.stop("a1", grace_s=1).evidence["shm_removed"] == []
        assert segment.exists()
        assert weights.exists()
    finally:
        weights.unlink(missing_ok=True)
        folder.rmdir()


def test_shared_memory_that_somebody_else_has_open_stays_and_is_named(bench, segment):
    bench.launch("a1", "", argv=(*python(SEGMENT), str(segment)))
    bench.said("a1", "mapped")
    with segment.open("rb"):
        report = bench.host.stop("a1", grace_s=1)
        assert segment.exists()
    assert report.state == "stop_incomplete"
    assert report.survivors[0]["holds"] == [{"file": str(segment), "bytes": 4096}]
    assert bench.host.stop("a1", grace_s=1).state == "stopped", "once it is free, it goes"
    assert not segment.exists()


def test_a_spec_may_name_files_that_no_process_keeps_open(bench, segment):
    spec = {"shm": [f"{segment.stem}*"]}
    bench.launch("a1", f"echo data > {segment}; echo up; sleep 300", **spec)
    bench.said("a1", "up")
    assert bench.host.stop("a1", grace_s=1).state == "stopped"
    assert not segment.exists()


def test_a_name_pattern_takes_nothing_from_another_job(bench, segment):
    """Two servers of one kind: the first is stopped while the second holds its own file."""
    spec = {"shm": [f"{segment.stem}*"]}
    bench.launch("a1", "echo up; sleep 300", task="one", **spec)
    bench.said("a1", "up")
    bench.launch("b1", "", argv=(*python(SEGMENT), str(segment)), task="two", **spec)
    bench.said("b1", "mapped")
    assert bench.host.stop("a1", grace_s=1).state == "stopped"
    assert segment.exists()
    assert bench.host.stop("b1", grace_s=1).state == "stopped"
    assert not segment.exists()


def test_survivors_say_what_they_hold(bench):
    code = (
        "import os, socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); time.sleep(300)"
    )
    bench.launch("a1", "", argv=(sys.executable, "-S", "-c", code))
    port = int(wait_for(lambda: bench.text("a1").strip(), what="the port"))
    [pid] = bench.processes("a1")
    [supervisor] = bench.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    bench.host = bench.make_host(
        spare=[pid], kill_wait_s=0.2
    )  # as if the kernel would not let it end
    report = bench.host.stop("a1", grace_s=0.1, ports=[port])
    assert report.state == "stop_incomplete"
    [survivor] = report.survivors
    assert (survivor["pid"], survivor["ours"]) == (pid, True)
    assert survivor["command"].startswith("python")
    assert survivor["holds"] == [{"port": port}]


# --- requests count from the owner only ---


def test_a_job_gets_more_time(bench):
    bench.launch("a1", "sleep 300", time_limit_s=600, generation=3)
    assert bench.host.extend("a1", time_limit_s=0.2, generation=3) == 0.2
    ended = bench.ended("a1")
    assert ended.cls == "time_limit"
    assert ended.evidence["time_limit_s"] == 0.2
    with pytest.raises(RemoteError, match="exited"):
        bench.host.extend("a1", time_limit_s=600)


def test_a_limit_can_be_taken_away(bench):
    script = "until [ -e $RUNBOOK_JOB_DIR/go ]; do sleep 0.05; done"
    bench.launch("a1", script, time_limit_s=600)
    assert bench.host.extend("a1", time_limit_s=None) is None
    (bench.job("a1") / "go").touch()
    ended = bench.ended("a1")
    assert (ended.cls, ended.evidence["time_limit_s"]) == ("ok", None)


def test_requests_of_another_generation_are_refused(bench):
    bench.launch("a1", "sleep 300", generation=5)
    for old in (4, 6):
        with pytest.raises(StaleGeneration, match=f"this request is for {old}"):
            bench.host.stop("a1", grace_s=1, generation=old)
        with pytest.raises(StaleGeneration):
            bench.host.extend("a1", time_limit_s=0.1, generation=old)
    assert bench.status("a1").state == "running"


def test_an_attempt_that_lost_its_task_obeys_nobody_but_a_signal(bench):
    """As when an operator superseded it and the host came back: the owner's word counts."""
    bench.launch("a1", "echo ready; sleep 300", generation=1)
    bench.said("a1", "ready")
    current = bench.root / "w" / "tasks" / "task" / "current"
    current.write_text(json.dumps({"attempt": "a2", "generation": 2}))
    with pytest.raises(StaleGeneration):
        bench.host.stop("a1", grace_s=1, generation=1)
    limit = {"generation": 1, "id": "x", "time_limit_s": 0.1}
    (bench.job("a1") / "ctl" / "extend").write_text(json.dumps(limit))
    beat = bench.status("a1").beat
    wait_for(lambda: bench.status("a1").beat > beat + 1, what="two beats")
    assert bench.status("a1").state == "running"
    assert bench.host.stop("a1", grace_s=1).state == "stopped", "without a claim to the task"
