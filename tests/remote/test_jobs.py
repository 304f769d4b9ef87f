"""A detached job on this machine: what it gets, what it leaves, how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from remote import HostFenceHeld, LaunchFailed, LocalTransport, RemoteError, UnsupportedHost
from tests.support.deadline import wait_for


def test_a_job_leaves_its_exit_code_output_and_result(bench):
    started = bench.launch(
        "a1",
        'echo out; echo err >&2; echo \'{"loss": 1.5}\' > "$RUNBOOK_OUT"; '
        'printf \'{"done": 1}\\n{"done": 2}\\n{"do\' > "$RUNBOOK_PROGRESS"; exit 3',
    )
    assert started.state in ("running", "exited")
    ended = bench.ended("a1")
    assert (ended.state, ended.cls, ended.exit_code, ended.signal) == ("exited", "exit", 3, None)
    assert ended.progress == {"done": 2}, "a line that is still being written is not read"
    assert ended.out_size == len("out\n")
    assert bench.host.read_log("a1", "err", offset=0).data == b"err\n"
    assert bench.host.read_out("a1") == {"loss": 1.5}
    assert (
        bench.host.last_identity.boot_id
        == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    )
    assert ended.started_at is not None
    assert ended.ended_at is not None


def test_the_payload_sees_no_terminal_and_its_own_places(bench):
    bench.launch(
        "a1",
        'readlink /proc/self/fd/0 /proc/self/fd/1; pwd; echo "$RUNBOOK_ATTEMPT $RUNBOOK_TASK $X"',
        env={"X": "y"},
        cwd="/tmp",
    )
    bench.ended("a1")
    lines = bench.text("a1").splitlines()
    assert lines == ["/dev/null", str(bench.job("a1") / "out.log"), "/tmp", "a1 task y"]


def test_the_payload_has_the_logins_umask_and_signals(bench):
    before = os.umask(0o027)
    # As a shell leaves them to what it starts in the background.
    heard = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGQUIT)}
    try:
        bench.launch("a1", "umask; grep SigIgn /proc/self/status")
    finally:
        os.umask(before)
        for number, handler in heard.items():
            signal.signal(number, handler)
    bench.ended("a1")
    umask, ignored = bench.text("a1").splitlines()
    assert umask == "0027"
    # 32 and 33 belong to the C library: who inherits them ignored cannot change that.
    assert int(ignored.split()[1], 16) & ~(3 << 31) == 0
    assert (bench.job("a1") / "out.log").stat().st_mode & 0o077 == 0
    assert bench.job("a1").stat().st_mode & 0o077 == 0


def test_launching_again_starts_nothing(bench):
    bench.launch("a1", "echo started; sleep 60")
    bench.said("a1", "started")
    again = bench.launch("a1", "echo started; sleep 60")
    assert again.state == "running"
    assert bench.text("a1") == "started\n"
    with pytest.raises(LaunchFailed, match="published otherwise"):
        bench.launch("a1", "another command")


def test_many_launchers_at_once_start_one_payload(bench):
    bench.host.identity()  # the scripts are on the host
    request = {
        "begin": "<", "end": ">", "root": str(bench.root), "workspace": "w", "secrets": {},
        "spec": {"attempt": "a1", "task": "task", "generation": 1, "env": {}, "cwd": "",
                 "argv": ["sh", "-c", f"echo one >> {bench.root}/starts; sleep 300"],
                 "time_limit_s": None, "ports": [], "grace_s": 1},
    }  # fmt: skip
    script = next((bench.root / "w" / "bin").glob("*-supervisor.pyz"))
    racers = [
        subprocess.Popen(
            [sys.executable, "-S", "-E", str(script), "launch"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(60)
    ]  # fmt: skip
    body = json.dumps(request).encode()
    for racer in racers:
        racer.stdin.write(body)
        racer.stdin.flush()
    for racer in racers:  # all read to the end of their input: now they go
        racer.stdin.close()
    answers = []
    for racer in racers:
        with racer:
            answers.append(json.loads(racer.stdout.read().strip(b"<>\n")))
    assert {answer["ok"] for answer in answers} == {True}
    assert {answer["status"]["state"] for answer in answers} == {"running"}
    bench.host.stop("a1", grace_s=1)
    assert (bench.root / "starts").read_text() == "one\n"


def test_many_attempts_of_one_task_race_to_one_winner(bench):
    bench.host.identity()
    answers = []

    def start(number: int) -> None:
        spec = bench.spec(f"a{number}", "sleep 300", generation=number)
        try:
            answers.append(bench.make_host().launch(spec).state)
        except HostFenceHeld:
            answers.append("held")

    threads = [threading.Thread(target=start, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["held"] * 7 + ["running"]
    assert len(bench.supervisors()) == 1


def test_a_second_attempt_waits_for_the_fence(bench):
    bench.launch("a1", "sleep 60", generation=1)
    with pytest.raises(HostFenceHeld) as held:
        bench.launch("a2", "echo two", generation=2)
    assert (held.value.attempt, held.value.generation) == ("a1", 1)
    assert "a1" in held.value.hint
    assert bench.status("a2").state == "absent"
    bench.host.stop("a1", grace_s=2)
    assert bench.launch("a2", "echo two", generation=2).state in ("running", "exited")
    bench.ended("a2")
    with pytest.raises(HostFenceHeld, match="generation 2"):
        bench.launch("a0", "echo late", generation=1)


def test_a_port_belongs_to_one_attempt(bench):
    bench.launch("a1", "sleep 60", task="serve-1", ports=(39997,))
    with pytest.raises(HostFenceHeld) as held:
        bench.launch("b1", "sleep 60", task="serve-2", ports=(39997,))
    assert held.value.resource == "port:39997"
    assert held.value.attempt == "a1"


def test_a_burned_attempt_never_runs(bench):
    assert bench.host.burn("a1")
    assert bench.launch("a1", "echo ran").state == "burned"
    assert bench.status("a1").cls == "never_started"
    bench.launch("a2", "sleep 60", generation=2)
    assert not bench.host.burn("a2"), "it had started"
    assert bench.status("a2").state == "running"


@pytest.mark.parametrize(
    ("script", "cls", "code", "number"),
    [
        ("exit 0", "ok", 0, None),
        ("kill -TERM $$", "signal", None, 15),
        ("kill -KILL $$", "signal", None, 9),
        ("kill -BUS $$", "disk_full", None, 7),
        ("echo 'cp: write error: No space left on device' >&2; exit 1", "disk_full", 1, None),
    ],
)
def test_how_it_ended_has_a_class(bench, script, cls, code, number):
    bench.launch("a1", script)
    ended = bench.ended("a1")
    assert (ended.cls, ended.exit_code, ended.signal) == (cls, code, number)
    if number == signal.SIGKILL:
        assert "no counter proves" in ended.evidence["oom_suspected"]["note"]


def test_a_program_that_is_not_there_never_started(bench):
    bench.launch("a1", "", argv=("/no/such/program",))
    ended = bench.ended("a1")
    assert (ended.state, ended.cls, ended.exit_code) == ("exited", "never_started", None)
    assert "/no/such/program" in ended.reason


def test_the_time_limit_is_kept_on_the_host(bench):
    bench.launch("a1", "trap '' TERM; while :; do sleep 0.1; done", time_limit_s=2, grace_s=0.5)
    ended = bench.ended("a1")
    assert (ended.cls, ended.signal) == ("time_limit", signal.SIGKILL)
    assert bench.processes() == []


def test_what_a_payload_leaves_behind_ends_with_it(bench):
    there = "until grep -q sleep /proc/$!/comm; do sleep 0.02; done"
    bench.launch("a1", f"setsid sleep 300 & {there}; echo left; exit 0")
    ended = bench.ended("a1")
    assert ended.cls == "ok"
    assert [left["command"] for left in ended.evidence["leftovers"]] == ["sleep"]
    assert bench.processes() == []


def test_secrets_reach_the_payload_and_nothing_else(bench):
    secret = "canary-7f3a9c5e"
    script = 'test "${TOKEN%%-*}" = canary && echo "got ${#TOKEN}"; sleep 60'
    spec = bench.spec("a1", script, secrets={"TOKEN": secret})
    bench.host.launch(spec)
    assert secret not in repr(spec)
    bench.said("a1", f"got {len(secret)}")
    for path in bench.root.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    for pid in [*bench.supervisors(), *bench.processes()]:
        assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for pid in bench.supervisors():
        assert secret.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_client_killed_with_its_whole_session_takes_no_job_along(bench, tmp_path):
    program = textwrap.dedent(
        f"""
        import os, signal
        from remote import Host, JobSpec, LocalTransport
        host = Host(LocalTransport(), root={str(bench.root)!r}, workspace_id="w")
        host.launch(JobSpec(attempt="a1", task="t", generation=1,
                            argv=("sh", "-c", "echo alive; sleep 1; echo done")))
        os.killpg(0, signal.SIGKILL)
        """
    )
    client = subprocess.run(
        [sys.executable, "-c", program], start_new_session=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert client.returncode == -signal.SIGKILL
    assert bench.ended("a1").cls == "ok"
    assert bench.text("a1") == "alive\ndone\n"


def test_names_that_leave_the_workspace_are_refused(bench):
    with pytest.raises(LaunchFailed, match="plain name"):
        bench.launch("../a1", "true")
    with pytest.raises(RemoteError, match="plain name"):
        bench.host.stop("..", grace_s=1)


def test_files_are_shipped_once_by_content(bench):
    first = bench.host.ship({"a.py": b"1", "sub/b.py": b"2"}, name="code")
    stamp = Path(first).stat().st_ino
    assert bench.host.ship({"sub/b.py": b"2", "a.py": b"1"}, name="code") == first
    assert Path(first).stat().st_ino == stamp
    assert (Path(first) / "sub" / "b.py").read_bytes() == b"2"
    assert bench.host.ship({"a.py": b"3"}, name="code") != first
    assert bench.host.read_file(f"{first}/a.py", 10) == b"1"
    with pytest.raises(RemoteError, match="leaves its directory"):
        bench.host.ship({"../a.py": b""}, name="code")


def test_stop_ends_a_child_that_left_the_tree_and_holds_a_port(bench):
    child = (
        "import os, socket, time; os.setsid(); s = socket.socket(); "
        "s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); time.sleep(300)"
    )
    bench.launch("a1", f'(trap "" TERM; exec {sys.executable} -c "{child}") & sleep 300')
    port = int(wait_for(lambda: bench.text("a1").strip(), what="the port"))
    report = bench.host.stop("a1", grace_s=0.5, ports=[port])
    assert report.state == "stopped", report
    assert bench.processes() == []
    assert bench.host.check([{"port_free": {"port": port}}])[0].verdict == "pass"
    assert bench.status("a1").cls == "stopped"


def test_a_port_that_somebody_else_holds_is_reported(bench):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        bench.launch("a1", "sleep 300")
        report = bench.host.stop("a1", grace_s=1, ports=[port])
    assert report.state == "stop_incomplete"
    assert [(one["holds"], one["pid"]) for one in report.survivors] == [
        ([{"port": port}], os.getpid())
    ]


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_the_host_side_runs_on_old_and_new_pythons(bench, tmp_path, monkeypatch, version):
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    found += [Path(path) for path in [shutil.which(f"python{version}")] if path]
    if not found:
        pytest.skip(f"no Python {version} here")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(found[0])
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert bench.host.facts()["python"]["version"].startswith(version + ".")
    bench.launch("a1", "setsid sleep 300 & echo hello; sleep 300")
    bench.said("a1", "hello")
    assert bench.host.read_log("a1", "out", offset=0).data == b"hello\n"
    assert bench.host.check([{"process_alive": {}}], attempt="a1")[0].verdict == "pass"
    assert bench.host.extend("a1", time_limit_s=600) == 600
    assert [job.status.state for job in bench.host.jobs()[0]] == ["running"]
    assert bench.host.stop("a1", grace_s=1).state == "stopped"
    assert bench.status("a1").cls == "stopped"
    assert bench.host.radar([str(tmp_path)])[0]["verdict"]
    (tmp_path / "here").write_bytes(os.urandom(5 << 20))
    bench.host.push(tmp_path / "here", str(tmp_path / "there"))
    bench.host.pull(str(tmp_path / "there"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "here").read_bytes()
    assert bench.host.collect_garbage(["a1"], keep=0, older_than_s=0)


def test_a_machine_without_python_is_unsupported(bench, tmp_path, monkeypatch):
    class Bare(type(bench.host.transport)):
        def run(self, argv, **more):
            argv = [word.replace("python3", "no-python") for word in argv]
            return super().run(argv, **more)

    bench.host.transport = Bare()
    with pytest.raises(UnsupportedHost, match=r"no Python 3\.8"):
        bench.host.identity()


def test_the_operators_own_tokens_are_not_for_local_jobs(bench, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    bench.launch("a1", 'echo "[$HF_TOKEN$VIRTUAL_ENV]"')
    bench.ended("a1")
    assert bench.text("a1") == "[]\n"


def test_jobs_on_this_machine_need_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedHost, match="needs Linux") as unsupported:
        LocalTransport()
    assert "over SSH" in unsupported.value.hint
