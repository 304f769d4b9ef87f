"""What users get wrong, and what hosts do to us: one clear message and the next step, each."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from remote import AuthRefused, Host, HostTarget, RemoteError, Unreachable, UnsupportedHost
from remote.ssh import SshTransport
from tests.support import namespaces
from tests.support.sshd import make_key, running_sshd


def over(sshd, *, connect_s: float = 20, **more) -> SshTransport:
    given = {
        "address": "127.0.0.1", "user": sshd.user, "port": sshd.port, "root": "",
        "host_key": sshd.host_key,
    }  # fmt: skip
    target = HostTarget(kind="ssh", **{**given, **more})
    return SshTransport(target, config=sshd.client_config, connect_s=connect_s)


@pytest.fixture
def ssh(sshd):
    made = over(sshd)
    yield made
    made.close()


def clear(error: RemoteError) -> None:
    """Names what went wrong without our insides, and the next step."""
    assert error.hint
    assert not re.search(r"Traceback|Errno|paramiko|NoneType", error.message)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"address": "no-such-host.invalid"}, "no-such-host.invalid:[0-9]+: .*name"),
        ({"port": 1}, ":1: .*refused"),
        # What a network answers for an address that is nowhere differs; all are told.
        ({"address": "192.0.2.1"}, "timed out|unreachable|no route|refused"),
    ],
    ids=["unknown name", "nobody listens", "no route"],
)
def test_a_host_that_is_not_there(sshd, more, said):
    made = over(sshd, connect_s=3, **more)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="Cannot reach") as error:
        made.run(["true"], timeout=30)
    assert re.search(said, error.value.message, re.IGNORECASE), error.value.message
    assert time.monotonic() - began < 15
    clear(error.value)
    made.close()


def test_a_name_server_that_never_answers(sshd, monkeypatch):
    over_now = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: over_now.wait(60) and [])
    made = over(sshd, connect_s=3)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="was not resolved in time") as error:
        made.run(["true"], timeout=30)
    assert time.monotonic() - began < 15
    clear(error.value)
    over_now.set()
    made.close()


def test_the_first_of_two_addresses_is_dead(sshd, monkeypatch):
    dead, live = ("127.0.0.1", 1), ("127.0.0.1", sshd.port)
    rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in (dead, live)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: rows)
    made = over(sshd)
    assert made.run(["true"], timeout=30).ok
    made.close()


def test_an_account_that_lets_nobody_in(sshd):
    made = over(sshd, user="nobody-of-this-name")
    with pytest.raises(AuthRefused, match="nobody-of-this-name in with none of our keys") as error:
        made.run(["true"], timeout=30)
    clear(error.value)
    made.close()


def test_a_key_file_that_is_none(sshd, tmp_path):
    (tmp_path / "key").write_text("not a key\n")
    config = tmp_path / "config"
    config.write_text(f"IdentityFile {tmp_path}/key\nIdentityAgent none\n")
    target = HostTarget(
        kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port, root="",
        host_key=sshd.host_key,
    )  # fmt: skip
    made = SshTransport(target, config=config)
    with pytest.raises(AuthRefused, match="key: ") as error:
        made.run(["true"], timeout=30)
    clear(error.value)
    made.close()


def test_a_pinned_key_that_is_none(sshd):
    made = over(sshd, host_key="nonsense")
    with pytest.raises(RemoteError, match="not `TYPE BASE64`"):
        made.run(["true"], timeout=30)
    made.close()


def test_something_that_does_not_speak_ssh(sshd, tmp_path):
    page = subprocess.Popen(
        ["sh", "-c", "exec python3 -u -m http.server 0 --bind 127.0.0.1"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert page.stdout is not None
        port = int(re.search(r"port (\d+)", page.stdout.readline())[1])
        made = over(sshd, port=port)
        with pytest.raises(Unreachable, match="Cannot reach"):
            made.run(["true"], timeout=30)
        made.close()
    finally:
        page.terminate()
        page.wait(10)
        page.stdout.close()


def test_a_missing_command_is_a_result(ssh):
    found = ssh.run(["no-such-command-here"], timeout=30)
    assert found.code == 127
    assert b"not found" in found.err


def test_a_command_that_ends_without_reading_its_input_has_its_result(ssh):
    for _ in range(20):
        found = ssh.run(["sh", "-c", "exit 3"], input=b"x" * (4 << 20), timeout=30)
        assert found.code == 3


def test_output_that_is_no_text_arrives_as_it_was(ssh):
    raw = bytes(range(256)) * 64
    assert ssh.run(["cat"], input=raw, timeout=30).out == raw


def test_a_command_that_never_stops_talking_is_cut_off(ssh, monkeypatch):
    monkeypatch.setattr("remote.ssh_channel.LONGEST_OUTPUT", 4 << 20)
    with pytest.raises(Unreachable, match="more than 4 MiB"):
        ssh.run(["yes"], timeout=60)
    assert ssh.run(["true"], timeout=30).ok, "the connection lives on"


def test_a_host_without_python_says_what_to_install(tmp_path):
    namespaces.require()
    machine = namespaces.Machine(tmp_path / "machine", 251)
    try:
        machine.make(hidden=sorted({path.resolve() for path in Path("/usr/bin").glob("python3*")}))
        target = HostTarget(
            kind="ssh", address=machine.address, user="root", port=namespaces.PORT, root="",
            host_key=machine.host_key,
        )  # fmt: skip
        made = SshTransport(target, config=machine.client_config)
        host = Host(made, root=str(tmp_path / "root"), workspace_id="w")
        with pytest.raises(UnsupportedHost, match=r"no Python 3\.8 or newer") as error:
            host.identity()
        assert "install python3" in error.value.hint
        made.close()
    finally:
        machine.remove()


def test_a_root_that_may_not_be_written(sshd, ssh, tmp_path):
    (tmp_path / "file").write_text("")
    host = Host(ssh, root=str(tmp_path / "file" / "below"), workspace_id="w")
    with pytest.raises(RemoteError) as error:
        host.identity()
    assert str(tmp_path / "file") in error.value.message
    assert "Traceback" not in error.value.message


def test_ipv6(tmp_path):
    if not any(line.startswith("0" * 31 + "1 ") for line in interfaces()):
        pytest.skip("this machine has no IPv6 loopback")
    with running_sshd(tmp_path / "sshd", options="ListenAddress ::1") as sshd:
        (sshd.folder / "known_hosts").write_text(f"[::1]:{sshd.port} {sshd.host_key}\n")
        made = over(sshd, address="::1", host_key=None)
        assert made.run(["true"], timeout=30).ok
        made.close()


def interfaces() -> list[str]:
    path = Path("/proc/net/if_inet6")
    return path.read_text().splitlines() if path.exists() else []


def test_a_key_with_a_name_like_ours_changes_nothing(sshd, tmp_path):
    """Another host's key in known_hosts does not make this one trusted."""
    other = make_key(tmp_path / "other")
    config = tmp_path / "config"
    (tmp_path / "known").write_text(f"127.0.0.1 {other}\nlocalhost {sshd.host_key}\n")
    config.write_text(
        f"IdentityFile {sshd.folder}/client_key\nUserKnownHostsFile {tmp_path}/known\n"
        "GlobalKnownHostsFile none\n"
    )
    target = HostTarget(kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port, root="")
    made = SshTransport(target, config=config)
    with pytest.raises(Unreachable, match="is not known"):
        made.run(["true"], timeout=30)
    made.close()
