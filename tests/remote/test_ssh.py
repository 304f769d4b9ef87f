"""The same jobs over a real sshd: lost links, odd shells, keys, jumps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from remote import (
    AuthRefused,
    Host,
    HostKeyChanged,
    HostKeyUnknown,
    HostTarget,
    JobSpec,
    Unreachable,
)
from remote.breaker import Breaker
from remote.ssh import SshTransport
from tests.support.deadline import wait_for
from tests.support.link import Link
from tests.support.sshd import make_key, running_agent, running_sshd


def target(sshd, **more) -> HostTarget:
    given = {"address": "127.0.0.1", "user": sshd.user, "port": sshd.port, "root": "/nowhere"}
    return HostTarget(kind="ssh", **{**given, **more})


@pytest.fixture(scope="module")
def transport(sshd):
    made = SshTransport(target(sshd), config=sshd.client_config)
    yield made
    made.close()


@pytest.fixture
def link(sshd):
    made = Link(sshd.port)
    yield made
    made.close()


def over(link, sshd, **more) -> SshTransport:
    wanted = target(sshd, port=link.port, host_key=sshd.host_key)
    return SshTransport(wanted, config=sshd.client_config, **more)


def test_words_arrive_as_they_were(transport):
    words = ["a b", "it's", '"q"', "$HOME", "*", "new\nline", "ü", "", "-n", "back\\slash", "!x"]
    code = "import sys; sys.stdout.write(repr(sys.argv[1:])); sys.exit(255)"
    result = transport.run([sys.executable, "-c", code, *words], timeout=20)
    assert result.out.decode() == repr(words)
    assert result.code == 255, "a command's own 255 is a result"


def test_streams_beyond_every_window_pass(transport):
    data = os.urandom(1 << 20) * 9
    assert transport.run(["cat"], input=data, timeout=60).out == data
    script = "head -c 9000000 /dev/zero >&2; head -c 9000000 /dev/zero; exit 3"
    result = transport.run(["sh", "-c", script], timeout=60)
    assert (result.code, len(result.out), len(result.err)) == (3, 9000000, 9000000)


def test_no_exit_status_is_no_verdict(transport):
    with pytest.raises(Unreachable, match="without an exit status"):
        transport.run(["sh", "-c", "kill -9 $$"], timeout=20)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"too long|Timeout opening"):
        transport.run(["sleep", "60"], timeout=1)
    assert time.monotonic() - began < 10
    assert transport.run(["true"], timeout=20).ok, "the connection lives on"


def test_a_job_over_ssh(bench, transport, sshd):
    host = Host(transport, root=str(bench.root), workspace_id="w")
    spec = JobSpec(
        attempt="a1", task="t", generation=1, secrets={"TOKEN": "canary-5512"},
        argv=("sh", "-c", 'echo "got ${#TOKEN}"; exec sleep 300'),
    )  # fmt: skip
    assert host.launch(spec).state == "running"
    bench.said("a1", "got 11")
    assert host.last_identity.host_key == sshd.host_key
    sshd.cut()
    bench.said("a1", "got 11")
    found = wait_for(lambda: poll(host, "a1"), what="an answer after the cut")
    assert found.state == "running", "the job outlives the connection"
    assert host.launch(spec).state == "running"
    assert bench.text("a1") == "got 11\n", "and was started once"
    assert host.stop("a1", grace_s=2).state == "stopped"
    assert "canary-5512" not in sshd.log


def test_a_link_cut_in_the_middle_of_a_launch_starts_one_payload(bench, link, sshd):
    made = over(link, sshd)
    host = Host(made, root=str(bench.root), workspace_id="w")
    assert wait_for(lambda: poll(host, "none"), what="the first answer")
    for turn in range(3):
        attempt, marks = f"a{turn}", bench.root / f"starts-{turn}"
        spec = JobSpec(
            attempt=attempt, task=f"t{turn}", generation=1,
            argv=("sh", "-c", f"echo one >> {marks}; exec sleep 300"),
        )  # fmt: skip
        outcome = []

        def launch(spec=spec, outcome=outcome) -> None:
            try:
                outcome.append(host.launch(spec).state)
            except Unreachable as error:
                outcome.append(error)

        thread = threading.Thread(target=launch)
        thread.start()
        wait_for(bench.job(attempt).exists, what="the request to arrive")
        link.cut()
        thread.join()
        assert outcome

        def again(spec=spec) -> str | None:
            try:
                return host.launch(spec).state
            except Unreachable:
                return None

        assert wait_for(again, what="an answer") == "running"
        wait_for(lambda marks=marks: marks.exists() and marks.read_text(), what="the start")
        assert marks.read_text() == "one\n"
    made.close()


def poll(host, attempt):
    try:
        return host.poll([attempt])[attempt]
    except Unreachable:
        return None


def test_a_shell_that_talks_is_not_taken_for_an_answer(bench, sshd, tmp_path):
    noise = 'echo \'Welcome! {"ok": false}\'; echo motd >&2; eval "$SSH_ORIGINAL_COMMAND"'
    key = make_key(tmp_path / "noisy_key")
    wrapper = tmp_path / "noise.sh"
    wrapper.write_text(noise)
    with (sshd.folder / "authorized_keys").open("a") as file:
        file.write(f'command="sh {wrapper}" {key}\n')
    config = tmp_path / "config"
    config.write_text(
        f"IdentityFile {tmp_path}/noisy_key\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {sshd.folder}/known_hosts\n"
    )
    made = SshTransport(target(sshd), config=config)
    try:
        host = Host(made, root=str(bench.root), workspace_id="w")
        host.launch(JobSpec(attempt="a1", task="t", generation=1, argv=("sh", "-c", "exit 4")))
        assert bench.ended("a1").exit_code == 4
        assert host.poll(["a1"])["a1"].exit_code == 4
    finally:
        made.close()


def test_a_silent_link_ends_by_our_deadline_and_heals(link, sshd):
    made = over(link, sshd)
    try:
        assert made.run(["true"], timeout=30).ok
        link.freeze()
        began = time.monotonic()
        with pytest.raises(Unreachable):
            made.run(["true"], timeout=1.5)
        assert time.monotonic() - began < 10
        link.thaw()
        assert wait_for(lambda: runs(made), what="the link to heal")
    finally:
        made.close()


def runs(transport) -> bool:
    try:
        return transport.run(["true"], timeout=20).ok
    except Unreachable:
        return False


def test_a_server_that_never_greets_ends_by_our_deadline(link, sshd):
    link.freeze()
    made = over(link, sshd, connect_s=1)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="Cannot reach"):
        made.run(["true"], timeout=30)
    assert time.monotonic() - began < 10
    made.close()


def test_a_dead_machine_costs_one_stream_of_tries(link, sshd):
    link.target = 1  # nobody listens there: every connection is closed at once
    made = over(link, sshd)
    made.breaker = Breaker(first_s=60, most_s=60)
    errors = []

    def ask() -> None:
        try:
            made.run(["true"], timeout=20)
        except Unreachable as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 16
    assert link.accepted == 1
    made.close()


def test_many_threads_share_one_connection(link, sshd):
    made = over(link, sshd)
    results = []

    def ask(number: int) -> None:
        results.append((number, made.run(["echo", str(number)], timeout=60).out))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [(number, b"%d\n" % number) for number in range(20)]
    assert link.accepted == 1
    made.close()


def test_unknown_and_changed_keys_send_nothing(sshd, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        f"IdentityFile {sshd.folder}/client_key\nUserKnownHostsFile {tmp_path}/none\n"
        "GlobalKnownHostsFile none\n"
    )
    before = sshd.log.count("Accepted publickey")
    made = SshTransport(target(sshd), config=config)
    with pytest.raises(HostKeyUnknown) as unknown:
        made.run(["true"], timeout=20)
    assert unknown.value.key == sshd.host_key
    made.close()
    pinned = replace(target(sshd), host_key=make_key(tmp_path / "other"))
    made = SshTransport(pinned, config=config)
    with pytest.raises(HostKeyChanged) as changed:
        made.run(["true"], timeout=20)
    assert changed.value.found == sshd.host_key
    made.close()
    assert sshd.log.count("Accepted publickey") == before
    made = SshTransport(replace(pinned, host_key=sshd.host_key), config=config)
    assert made.run(["true"], timeout=20).ok, "a pinned key needs no known_hosts"
    made.close()


def test_a_refused_key_is_named(sshd, tmp_path):
    make_key(tmp_path / "stranger")
    config = tmp_path / "config"
    config.write_text(f"IdentityFile {tmp_path}/stranger\nIdentitiesOnly yes\n")
    made = SshTransport(target(sshd, host_key=sshd.host_key), config=config)
    with pytest.raises(AuthRefused, match="stranger: refused") as refused:
        made.run(["true"], timeout=20)
    assert "ssh-agent" in refused.value.hint
    made.close()


def test_a_key_behind_a_passphrase_works_through_the_agent(sshd, tmp_path, monkeypatch):
    locked = tmp_path / "locked"
    shutil.copy(sshd.folder / "client_key", locked)
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "pass", "-f", locked], check=True)
    config = tmp_path / "config"
    config.write_text(f"IdentityFile {locked}\n")
    made = SshTransport(target(sshd, host_key=sshd.host_key), config=config)
    with pytest.raises(AuthRefused, match="locked: needs its passphrase"):
        made.run(["true"], timeout=20)
    made.close()
    with running_agent(tmp_path / "agent"):
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        subprocess.run(["ssh-add", "-q", sshd.folder / "client_key"], check=True)
        made = SshTransport(target(sshd, host_key=sshd.host_key), config=config)
        assert made.run(["true"], timeout=20).ok
        made.close()


def test_through_a_jump_host_and_a_proxy_command(sshd, tmp_path, link):
    relay = (
        "import os, socket, sys, threading\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "def up():\n"
        "    while d := os.read(0, 65536): s.sendall(d)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while d := s.recv(65536): os.write(1, d)\n"
    )
    (tmp_path / "relay.py").write_text(relay)
    config = tmp_path / "config"
    config.write_text(
        f"Host jumped\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
        f"  ProxyJump {sshd.user}@127.0.0.1:{link.port}\n"
        f"Host proxied\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
        f"  ProxyCommand {sys.executable} {tmp_path}/relay.py %p\n"
        f"Host *\n  IdentityFile {sshd.folder}/client_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known_hosts\n"
    )
    (tmp_path / "known_hosts").write_text(
        f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n[127.0.0.1]:{link.port} {sshd.host_key}\n"
    )
    for address in ("jumped", "proxied"):
        made = SshTransport(target(sshd, address=address, port=22), config=config)
        try:
            assert made.run(["echo", address], timeout=30).out.decode().strip() == address
        finally:
            made.close()
    assert link.accepted == 1, "the jump went over the link, the target through it"


def test_the_pinned_type_is_asked_for_when_a_host_has_several(sshd, tmp_path):
    with running_sshd(tmp_path / "two") as two:
        rsa = make_key(two.folder / "rsa_key", "rsa")
        two.stop()
        with (two.folder / "sshd_config").open("a") as file:
            file.write(f"HostKey {two.folder}/rsa_key\n")
        two.start()
        for pinned in (rsa, two.host_key):
            made = SshTransport(target(two, host_key=pinned), config=two.client_config)
            assert made.run(["true"], timeout=30).ok
            assert made.host_key == pinned
            made.close()
