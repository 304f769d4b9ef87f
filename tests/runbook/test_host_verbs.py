"""`host` verbs over a real sshd: a new key, a forgotten machine, a shell, a tunnel."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest

from runbook.cli.host_binding import binding_of
from runbook.errors import Exit
from runbook.service import Service
from runbook.workspace import Workspace
from state import HostBinding
from state.doctor import examine
from tests.support.deadline import wait_for
from tests.support.host_files import there_and_back
from tests.support.ports import free_port
from tests.support.sshd import Sshd, know, make_key, running_sshd
from tests.support.workspaces import cli, command, make, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASKS = """\
  files:
    title: Files
    phase: one
    step: shell
    with: {sh: "mkdir -p ${host.work}; echo kept > ${host.work}/file"}
    done_when:
      - file: {path: "${host.work}/file"}
  memory:
    title: Memory
    phase: one
    step: shell
    with: {sh: "echo in /dev/shm/somewhere"}
"""
SLOW = """\
  slow:
    title: Slow
    phase: one
    step: shell
    with: {sh: "sleep 300"}
"""


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """A server, and a home whose ssh configuration lets us in."""
    with running_sshd(tmp_path / "sshd") as server:
        know(server, tmp_path, monkeypatch)
        yield server


@pytest.fixture
def folder(tmp_path: Path, sshd: Sshd) -> Path:
    """A workspace whose role is played by that server."""
    binding = HostBinding(
        role="box",
        kind="ssh",
        address="127.0.0.1",
        user=sshd.user,
        port=sshd.port,
        root=str(tmp_path / "far"),
        work=str(tmp_path / "far" / "work"),
    )
    with make(tmp_path / "ws", TASKS) as service:
        service.bind("box", binding)
    return tmp_path / "ws"


def bound(folder: Path) -> list[HostBinding]:
    with Service.open(folder) as service:
        return list(service.snapshot().hosts)


def run(folder: Path) -> None:
    with Service.open(folder) as service:
        assert service.run().outcome == "done"


def fingerprint(sshd: Sshd) -> str:
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", sshd.folder / "host_key.pub"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return shown.stdout.split()[1]


def rebuild(sshd: Sshd) -> tuple[str, str]:
    """The machine gets another key, as a rebuilt one does; both fingerprints."""
    old = fingerprint(sshd)
    sshd.stop()
    for name in ("host_key", "host_key.pub"):
        (sshd.folder / name).unlink()
    make_key(sshd.folder / "host_key")
    sshd.start()
    return old, fingerprint(sshd)


def test_a_new_key_stops_everything_until_a_person_takes_it(folder: Path, sshd: Sshd) -> None:
    run(folder)
    same = cli(folder, "host", "repin", "box")
    assert "nothing to do" in same.stdout
    answer = json.loads(cli(folder, "host", "repin", "box", "--json").stdout)["data"]
    assert answer["was"] == answer["is"] == fingerprint(sshd)
    (before,) = bound(folder)
    old, new = rebuild(sshd)
    let_in = sshd.log.count("Accepted publickey")

    refused = cli(folder, "host", "probe", "box")
    assert refused.returncode == Exit.NEEDS_AUTH
    assert new in refused.stderr
    assert "host repin" in refused.stderr

    nobody = cli(folder, "host", "repin", "box")
    assert nobody.returncode == Exit.NEEDS_APPROVAL
    assert old in nobody.stdout
    assert new in nobody.stdout
    wrong = cli(folder, "host", "repin", "box", "--fingerprint", old)
    assert wrong.returncode == Exit.NEEDS_AUTH
    assert sshd.log.count("Accepted publickey") == let_in, "nothing was sent to it"

    taken = cli(folder, "host", "repin", "box", "--fingerprint", new, "--json")
    assert taken.returncode == 0, taken.stderr
    data = json.loads(taken.stdout)["data"]
    assert data["void"] == {"memory": ["memory"], "disk": ["files"]}
    assert (data["was"], data["is"]) == (old, new)
    (after,) = bound(folder)
    assert after.epoch != before.epoch, "another key is another epoch"
    where = ["--root", after.root, "--work", after.work, "-P", str(sshd.port)]
    added = cli(folder, "host", "add", "box", f"{sshd.user}@127.0.0.1", *where)
    assert added.returncode == Exit.NEEDS_AUTH, "known_hosts still has the old key"


def at_terminal(folder: Path, typed: str, *words: str, asks: bytes = b"Type `") -> tuple[int, str]:
    """Runs a verb in a terminal of its own, where somebody types what it asks for."""
    terminal, inside = pty.openpty()
    child = subprocess.Popen(
        command(folder, *words), stdin=inside, stdout=inside, stderr=inside,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(inside)
    said = b""
    try:
        while asks not in said:
            said += os.read(terminal, 4096)
        os.write(terminal, typed.encode() + b"\n")
        while piece := os.read(terminal, 4096):
            said += piece
    except OSError:
        pass
    os.close(terminal)
    return child.wait(60), said.decode()


def test_at_a_terminal_the_role_is_typed(folder: Path, sshd: Sshd) -> None:
    _, new = rebuild(sshd)
    code, said = at_terminal(folder, "yes", "host", "repin", "box")
    assert code == Exit.NEEDS_APPROVAL, said
    code, said = at_terminal(folder, "box", "host", "repin", "box")
    assert code == 0, said
    assert f"known by {new}" in said


def test_a_passphrase_is_asked_at_the_terminal_only(folder: Path, sshd: Sshd) -> None:
    key = str(sshd.folder / "client_key")
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
    nobody = cli(folder, "host", "probe", "box")
    assert nobody.returncode == Exit.NEEDS_AUTH
    assert "client_key: needs its passphrase" in nobody.stderr
    assert "ssh-add" in nobody.stderr
    code, said = at_terminal(folder, "secret", "host", "probe", "box", asks=b"client_key: ")
    assert code == 0, said
    assert f"{sshd.user}@127.0.0.1 port {sshd.port} (by ssh -G)" in said
    assert "secret" not in said


def test_a_forgotten_machine_is_bound_no_more(folder: Path) -> None:
    run(folder)
    gone = cli(folder, "host", "forget", "box")
    assert gone.returncode == 0, gone.stderr
    assert "Done with memory or processes of that machine: memory" in gone.stdout
    assert cli(folder, "host", "forget", "box").returncode == Exit.TASK_FAILED
    assert bound(folder) == []
    assert examine(folder / ".runbook" / "state.db") == [], "the tables follow from the events"


def test_a_machine_on_which_something_runs_is_not_forgotten(tmp_path: Path) -> None:
    slow = (
        '  slow:\n    title: Slow\n    phase: one\n    step: shell\n    with: {sh: "sleep 300"}\n'
    )
    make(tmp_path, slow).close()
    engine = subprocess.Popen(command(tmp_path, "run"), stdout=subprocess.DEVNULL)
    try:

        def active() -> bool:
            with Service.open(tmp_path) as service:
                return states(service) == {"slow": "active"}

        wait_for(active, what="the task to run")
        refused = cli(tmp_path, "host", "forget", "box")
        assert refused.returncode == Exit.CONFLICT
        assert "stop slow" in refused.stderr
    finally:
        engine.send_signal(signal.SIGINT)
        engine.wait(60)
        assert cli(tmp_path, "stop", "slow").returncode == 0


def test_a_shell_is_the_users_own_ssh_with_the_pinned_key(
    folder: Path, sshd: Sshd, tmp_path: Path
) -> None:
    (sshd.folder / "known_hosts").write_text("")  # the pinned key must do
    done = cli(folder, "host", "shell", "box", "-c", "sh -c 'pwd; exit 7'")
    assert (done.returncode, done.stdout.strip()) == (7, str(tmp_path / "far")), done.stderr
    rebuild(sshd)
    refused = cli(folder, "host", "shell", "box", "-c", "true")
    assert refused.returncode == 255
    assert "verification failed" in refused.stderr


@pytest.mark.parametrize("way", ["-p", "address"])
def test_a_port_is_given_as_people_are_used_to(folder: Path, sshd: Sshd, way: str) -> None:
    given = [f"{sshd.user}@127.0.0.1", "-p", str(sshd.port)]
    if way == "address":
        given = [f"{sshd.user}@127.0.0.1:{sshd.port}"]
    done = cli(folder, "host", "bind", "box", *given, "--accept-fingerprint", fingerprint(sshd))
    assert done.returncode == 0, done.stderr
    assert [(host.address, host.port) for host in bound(folder)] == [("127.0.0.1", sshd.port)]


@pytest.mark.parametrize(
    ("said", "port"),
    [("[fe80::1]:2222", 2222), ("[fe80::1]", 22), ("fe80::1", 22)],
)
def test_an_address_of_many_colons_is_bound_as_it_is_shown(
    tmp_path: Path, said: str, port: int
) -> None:
    found = binding_of(
        "box", f"me@{said}", Workspace(tmp_path), port=22, identity="", root="", work="",
        usd_per_hour=None, ends_at=None,
    )  # fmt: skip
    assert (found.address, found.port) == ("fe80::1", port)
    assert port == 22 or found.place == f"me@{said}"


def test_a_key_of_its_own_is_used_by_every_way_there(
    folder: Path, sshd: Sshd, tmp_path: Path
) -> None:
    """As with `ssh -i`: the configuration knows no key for this machine."""
    sshd.client_config.write_text(
        f"IdentityFile none\nUserKnownHostsFile {sshd.folder}/known_hosts\n"
    )
    key = tmp_path / "home" / ".ssh" / "rented"
    (sshd.folder / "client_key").rename(key)
    there = [f"{sshd.user}@127.0.0.1:{sshd.port}", "--root", str(tmp_path / "far")]
    alone = cli(folder, "host", "bind", "box", *there)
    assert alone.returncode == Exit.NEEDS_AUTH
    assert "-i KEY" in alone.stderr
    done = cli(folder, "host", "bind", "box", *there, "-i", str(key), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["host"]["identity_file"] == "~/.ssh/rented"
    assert cli(folder, "host", "rent", "box", "--usd-per-hour", "2").returncode == 0
    (after,) = bound(folder)
    assert (after.identity_file, after.host_key) == ("~/.ssh/rented", sshd.host_key)
    assert examine(folder / ".runbook" / "state.db") == [], "the tables follow from the events"

    run(folder)
    assert "with ~/.ssh/rented" in cli(folder, "host", "probe", "box").stdout
    listed = cli(folder, "host", "list").stdout
    assert "with ~/.ssh/rented" in listed
    assert f"{sshd.user}@127.0.0.1:{sshd.port}" in listed, "boxes behind one address differ by it"
    shell = cli(folder, "host", "shell", "box", "-c", "pwd")
    assert shell.stdout.strip() == str(tmp_path / "far"), shell.stderr
    closed = cli(folder, "host", "tunnel", "box", str(free_port()))
    assert "Nothing answers on port" in closed.stderr, "it got as far as the machine"

    key.chmod(0o640)
    for words in (("host", "probe", "box"), ("host", "shell", "box", "-c", "true")):
        refused = cli(folder, *words)
        assert refused.returncode in (Exit.NEEDS_AUTH, Exit.USAGE)
        assert f"chmod 600 {key}" in refused.stderr


def counted(sshd: Sshd) -> int:
    """Connections of which its log tells, once it has told of the end of each."""
    wait_for(lambda: not sshd.sessions(), what="every connection to be over")
    return sshd.log.count("Connection")


@pytest.mark.parametrize("wrong", ["none", "public", "open", "local"])
def test_a_wrong_key_is_refused_before_anything_is_asked(
    folder: Path, sshd: Sshd, wrong: str
) -> None:
    before, connections = bound(folder), counted(sshd)
    key = sshd.folder / "client_key"
    if wrong == "open":
        key.chmod(0o644)
    named = {"none": "nowhere", "public": f"{key}.pub"}.get(wrong, str(key))
    there = "local" if wrong == "local" else f"{sshd.user}@127.0.0.1:{sshd.port}"
    for dry in ((), ("--dry-run",)):
        refused = cli(folder, "host", "bind", "box", there, "-i", named, *dry)
        assert refused.returncode != 0
        assert "Traceback" not in refused.stderr
        said = {"none": "no key file", "public": f"name {key}:", "open": f"chmod 600 {key}"}
        assert said.get(wrong, "Leave -i out") in refused.stderr
    assert bound(folder) == before
    assert counted(sshd) == connections


def test_a_shell_here_is_in_the_folder_of_the_jobs(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    done = cli(tmp_path, "host", "shell", "box", "-c", "pwd")
    assert done.stdout.strip() == str(tmp_path / ".runbook" / "host"), done.stderr


def test_this_machine_is_reached_without_ssh(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    told = json.loads(cli(tmp_path, "host", "probe", "box", "--json").stdout)
    assert told["data"]["facts"]["reached"] == "this machine itself, without SSH"


def test_files_go_there_and_come_back(folder: Path, tmp_path: Path) -> None:
    there_and_back(folder, tmp_path)


def test_a_tunnel_outlives_the_connection(folder: Path, sshd: Sshd, tmp_path: Path) -> None:
    port, local = free_port(), free_port()
    (tmp_path / "page").write_text("hello")
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    lines: list[str] = []
    tunnel = subprocess.Popen(
        command(folder, "host", "tunnel", "box", str(port), "--local-port", str(local)),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert tunnel.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend(tunnel.stdout or ()), daemon=True)
    try:

        def page() -> str:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{local}/page", timeout=10) as answer:
                    return answer.read().decode()
            except OSError:
                return ""

        reader.start()
        assert wait_for(page, what="the page through the tunnel") == "hello"
        sshd.cut()
        assert wait_for(page, what="the page after the cut") == "hello"
        said = f"http://127.0.0.1:{local} is port {port} of box"
        wait_for(lambda: said in "".join(lines), what="what it says of itself")
    finally:
        server.terminate()
        server.wait(60)
        tunnel.send_signal(signal.SIGINT)
        assert tunnel.wait(60) == 0
        reader.join(60)
        tunnel.stdout.close()
    closed = cli(folder, "host", "tunnel", "box", str(port))
    assert closed.returncode == Exit.USAGE
    assert f"Nothing answers on port {port}" in closed.stderr
