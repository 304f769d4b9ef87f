"""Links that go silent, are slow, or lead through others; servers that allow little."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from remote import AuthRefused, Host, HostTarget, RemoteError, Unreachable
from remote.breaker import Breaker
from remote.ssh import SshTransport
from remote.ssh_config import chain
from tests.support.clocks import stepping_clock
from tests.support.deadline import wait_for
from tests.support.link import Link
from tests.support.sshd import running_sshd


@pytest.fixture
def link(sshd):
    made = Link(sshd.port)
    yield made
    made.close()


def target(sshd, **more) -> HostTarget:
    given = {
        "address": "127.0.0.1", "user": sshd.user, "port": sshd.port, "root": "/nowhere",
        "host_key": sshd.host_key,
    }  # fmt: skip
    return HostTarget(kind="ssh", **{**given, **more})


def over(link, sshd, **more) -> SshTransport:
    return SshTransport(target(sshd, port=link.port), config=sshd.client_config, **more)


def refused(transport, *, timeout: float, words=("true",), data: bytes = b"") -> tuple[str, float]:
    """What was said, and after how long."""
    began = time.monotonic()
    with pytest.raises(Unreachable) as error:
        transport.run(list(words), input=data, timeout=timeout)
    return str(error.value), time.monotonic() - began


@pytest.mark.parametrize("megabytes", [0, 32])
def test_a_black_hole_is_noticed_long_before_the_commands_own_limit(link, sshd, megabytes):
    data = b"x" * (megabytes << 20)
    made = over(link, sshd, silence_s=3)
    assert made.run(["true"], timeout=30).ok
    threading.Timer(0.3, link.freeze).start()
    said, seconds = refused(made, timeout=120, words=["sh", "-c", "cat; sleep 99"], data=data)
    assert "the connection was lost" in said or "sh: " in said
    assert seconds < 60
    link.thaw()
    assert wait_for(lambda: runs(made), what="the link to heal")
    made.close()


def test_a_dead_target_behind_a_living_jump_host_is_noticed(link, sshd, tmp_path):
    config = tmp_path / "config"
    config.write_text(
        f"Host inner\n  HostName 127.0.0.1\n  Port {link.port}\n"
        f"  ProxyJump {sshd.user}@127.0.0.1:{sshd.port}\n"
        f"Host *\n  IdentityFile {sshd.folder}/client_key\n"
        f"  UserKnownHostsFile {sshd.folder}/known_hosts\n"
    )
    made = SshTransport(target(sshd, address="inner", port=22), config=config, silence_s=3)
    assert made.run(["true"], timeout=30).ok
    threading.Timer(0.2, link.freeze).start()
    said, seconds = refused(made, timeout=120, words=["sleep", "99"])
    assert "lost" in said
    assert seconds < 60
    made.close()


def test_the_jump_host_dies_and_comes_back(link, sshd, tmp_path):
    with running_sshd(tmp_path / "jump") as jump:
        config = tmp_path / "config"
        config.write_text(
            f"Host inner\n  HostName 127.0.0.1\n  Port {sshd.port}\n"
            f"  ProxyJump {sshd.user}@127.0.0.1:{jump.port}\n"
            f'Match host 127.0.0.1 exec "test %p = {jump.port}"\n'
            f"  IdentityFile {jump.folder}/client_key\n"
            f"Host *\n  IdentityFile {sshd.folder}/client_key\n"
            f"  IdentityFile {jump.folder}/client_key\n"
            f"  UserKnownHostsFile {jump.folder}/known_hosts\n"
        )
        made = SshTransport(target(sshd, address="inner", port=22), config=config)
        assert made.run(["true"], timeout=30).ok
        jump.stop()
        said, seconds = refused(made, timeout=30)
        assert f"Cannot reach {sshd.user}@inner" in said
        assert seconds < 25
        jump.start()
        assert wait_for(lambda: runs(made), what="the way through the jump host")
        made.close()
        (jump.folder / "known_hosts").write_text("")
        stranger = SshTransport(target(sshd, address="inner", port=22), config=config)
        with pytest.raises(AuthRefused, match="Cannot trust the jump host"):
            stranger.run(["true"], timeout=30)
        stranger.close()


def runs(transport) -> bool:
    try:
        return transport.run(["true"], timeout=20).ok
    except Unreachable:
        return False


def test_the_first_jump_host_is_reached_by_its_own_configuration(tmp_path):
    config = tmp_path / "config"
    config.write_text(
        "Host far\n  ProxyJump two,three\n"
        "Host two\n  ProxyJump one\n"
        "Host three\n  ProxyJump one\n  ProxyCommand none\n"
        "Host one\n  ProxyCommand relay %h\n"
        "Host round\n  ProxyJump about\nHost about\n  ProxyJump round\n"
    )
    hops = chain("far", config=config)
    assert [hop.host for hop in hops] == ["one", "two", "three", "far"]
    assert [hop.proxy_command for hop in hops] == ["relay one", "", "", ""]
    with pytest.raises(RemoteError, match="lead in a circle") as error:
        chain("round", config=config)
    assert "ProxyJump none" in error.value.hint


def test_a_slow_link_is_slow_but_no_failure(sshd, bench):
    """All of it takes twice as long as any single answer may."""
    link = Link(sshd.port, delay_s=0.5)
    made = over(link, sshd, connect_s=5, silence_s=5)
    host = Host(made, root=str(bench.root), workspace_id="w")
    began = time.monotonic()
    assert host.launch(bench.spec("a1", "echo ran")).state in ("running", "exited")
    assert time.monotonic() - began > 4, "the link was slow"
    assert bench.ended("a1").cls == "ok"
    made.close()
    link.close()


@pytest.mark.parametrize("most", [1, 2])
def test_a_server_that_allows_few_sessions_gets_few(tmp_path, most):
    with running_sshd(tmp_path / "few", options=f"MaxSessions {most}") as few:
        link = Link(few.port)
        made = over(link, few)
        results, failures = [], []

        def ask(number: int) -> None:
            try:
                results.append(made.run(["sh", "-c", f"sleep 0.1; echo {number}"], timeout=60).out)
            except RemoteError as error:
                failures.append(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert sorted(results) == sorted(b"%d\n" % number for number in range(12))
        # A command that we gave up still holds its session there: a new connection serves us.
        refused(made, timeout=0.5, words=["sleep", "20"])
        refused(made, timeout=0.5, words=["sleep", "20"])
        assert made.run(["true"], timeout=30).ok
        made.close()
        link.close()


def test_a_server_that_admits_few_newcomers_gets_one_connection(tmp_path):
    with running_sshd(tmp_path / "shy", options="MaxStartups 2:50:4") as shy:
        link = Link(shy.port)
        made = over(link, shy)
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(made.run(["true"], timeout=60).ok))
            for _ in range(30)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 30
        assert link.accepted == 1
        assert made.bulk().run(["true"], timeout=30).ok
        assert link.accepted == 2, "transfers have a connection of their own"
        made.close()
        link.close()


def test_a_cut_while_the_keys_are_shown_is_no_refusal(link, sshd):
    """Every stage of a login, cut: never `refused`, and the next try gets in."""
    for count in (10, 900, 1700, 2300, 2700):
        link.break_after("up", count)
        made = over(link, sshd)
        try:
            made.run(["true"], timeout=30)
        except AuthRefused:
            raise
        except Unreachable:
            link.mend()
            assert wait_for(lambda made=made: runs(made), what="the next try")
        made.close()


def test_a_clock_set_back_during_a_login_prolongs_nothing(link, sshd):
    link.freeze()
    made = over(link, sshd)
    began = time.monotonic()
    with stepping_clock() as step:
        threading.Timer(0.5, step, (-3600.0,)).start()
        with pytest.raises(Unreachable):
            made.run(["true"], timeout=3)
    assert time.monotonic() - began < 60, "not the hour"
    made.close()


def test_pauses_grow_are_spread_and_end():
    now, chance = [0.0], [0.0]
    breaker = Breaker(first_s=1, most_s=8, clock=lambda: now[0], chance=lambda: chance[0])
    assert breaker.wait_s == 0
    waits = []
    for _ in range(6):
        breaker.failed()
        waits.append(breaker.wait_s)
    assert waits == [1, 2, 4, 8, 8, 8]
    chance[0] = 1.0
    breaker.failed()
    assert breaker.wait_s == 6
    now[0] += 6
    assert breaker.wait_s == 0
    breaker.answered()
    breaker.failed()
    assert breaker.wait_s < 1


def test_when_the_next_try_comes_is_told(sshd):
    nobody = SshTransport(replace(target(sshd), port=1), config=sshd.client_config)
    nobody.breaker = Breaker(first_s=60, most_s=60)
    errors = []
    for _ in range(2):
        with pytest.raises(Unreachable) as error:
            nobody.run(["true"], timeout=20)
        errors.append(error.value)
    assert all(error.retry_in_s and error.retry_in_s <= 60 for error in errors)
    nobody.close()
