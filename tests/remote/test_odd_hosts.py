"""Hosts that are set up in their own way: who may see what, which shell, where one may write."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from remote import CommandFailed, Host, JobSpec, LocalTransport
from tests.support.deadline import wait_for

NOBODY = 65534
OTHERS_PROC = (
    "mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 "
    '--clear-groups "$@"'
)


class Through(LocalTransport):
    """This machine, entered by another door."""

    def __init__(self, *door: str) -> None:
        super().__init__()
        self.door = door

    def run(self, argv, **more):
        return super().run([*self.door, *argv], **more)


def host_through(root: Path, machine: Path, *door: str) -> Host:
    inject = {"machine_root": str(machine)}
    return Host(Through(*door), root=str(root), workspace_id="w", inject=inject)


def job(attempt: str, script: str) -> JobSpec:
    argv = ("sh", "-c", script)
    return JobSpec(attempt=attempt, task="t", generation=1, argv=argv, grace_s=1.0)


def live_and_end(host: Host) -> None:
    """A job starts, is seen, is read, and is stopped for certain."""
    host.launch(job("a1", "setsid sleep 300 & echo up; sleep 300"))
    wait_for(lambda: host.read_log("a1", "out", offset=0).data == b"up\n", what="its output")
    assert host.poll(["a1"])["a1"].state == "running"
    report = host.stop("a1", grace_s=1)
    assert report.state == "stopped", report
    assert host.poll(["a1"])["a1"].cls == "stopped"


@pytest.fixture
def elsewhere():
    """A folder that another user owns and everybody can reach."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made.chmod(0o755)
    if os.getuid() == 0:
        os.chown(made, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def test_a_user_from_whom_others_processes_are_hidden(bench, elsewhere):
    door = ("unshare", "--mount", "sh", "-c", OTHERS_PROC, "sh")
    if subprocess.run([*door, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs root to hide processes from another user")
    host = host_through(elsewhere / "root", bench.machine, *door)
    assert host.facts()["sees"] == "own"
    live_and_end(host)
    assert host.identity().pid1_start == "0", "it cannot be seen; the boot id tells of a reboot"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_login_shell_that_talks(bench, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    noise = (
        "echo 'Welcome! {\"ok\": true}'; echo '<<>>'; printf '\\377\\033[31m'; echo news >&2; "
        'set -u; "$@"; code=$?; echo "logout"; exit $code'
    )
    host = host_through(bench.root, bench.machine, shell, "-c", noise, shell)
    live_and_end(host)
    source = tmp_path / "file"
    source.write_bytes(os.urandom(100_000))
    host.push(source, str(tmp_path / "there"))
    host.pull(str(tmp_path / "there"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_a_home_that_cannot_be_written(bench):
    """As on hosts whose home is a read-only image: the root lies elsewhere, and that is enough."""
    door = ("env", "HOME=/proc", "XDG_CONFIG_HOME=/proc")
    live_and_end(host_through(bench.root, bench.machine, *door))
    homely = host_through(Path("~/.runbook"), bench.machine, *door)
    with pytest.raises(CommandFailed) as failed:
        homely.identity()
    text = failed.value.message
    assert "cannot write /proc/.runbook" in text
    assert "Traceback" not in text
    assert "--root" in failed.value.hint


def test_a_disk_that_is_read_only(bench, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        host = host_through(disk / "root", bench.machine)
        with pytest.raises(CommandFailed, match="Read-only file system"):
            host.identity()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_log_of_bytes_that_are_no_text(bench):
    bench.launch("a1", r"printf '\377\376\000\033[2J\r half'; printf '\303' >&2")
    bench.ended("a1")
    assert bench.host.read_log("a1", "out", offset=0).data == b"\xff\xfe\x00\x1b[2J\r half"
    assert bench.host.read_log("a1", "err", offset=0).data == b"\xc3"


def test_progress_without_end_is_bounded_as_logs_are(bench):
    bench.host = bench.make_host(log_head=1 << 16, log_tail=1 << 17)
    line = '{"done": 1, "message": "' + "x" * 200 + '"}'
    bench.launch(
        "a1",
        f"yes '{line}' | head -n 20000 >> $RUNBOOK_PROGRESS; "
        "until grep -q progress $RUNBOOK_JOB_DIR/dropped.json; do sleep 0.1; done; "
        "echo '{\"done\": 2}' >> $RUNBOOK_PROGRESS",
    )
    ended = bench.ended("a1")
    assert ended.progress == {"done": 2}
    assert ended.progress_size > 4 << 20
    assert (bench.job("a1") / "progress.jsonl").stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("printf '%60000s' | tr ' ' '['", None),
        ("""printf '{"done": 1%0400d}'""", {"done": float("inf")}),
        ("""printf '{"done": 12345678901234567890}'""", {"done": 12345678901234567890}),
    ],
    ids=["deep", "larger-than-any-float", "large"],
)
def test_what_a_job_tells_keeps_nobody_from_looking(
    tmp_path: Path, line: str, said: dict[str, object] | None
) -> None:
    host = Host(LocalTransport(), root=str(tmp_path / "root"), workspace_id="w")
    told = f"{line} | tee $RUNBOOK_OUT > $RUNBOOK_PROGRESS; echo >> $RUNBOOK_PROGRESS"
    host.launch(job("a1", told))
    wait_for(lambda: host.poll(["a1"])["a1"].state == "exited", what="its end")
    status = host.poll(["a1"])["a1"]
    assert (status.cls, status.progress) == ("ok", said)
    assert host.read_out("a1") == said
