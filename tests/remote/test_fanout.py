"""A silent host is asked once and keeps nobody waiting; its answer comes with a later round."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from remote import Host, HostTarget, LocalTransport, Result, Unreachable
from remote.fanout import Answer, Fanout
from remote.ssh import SshTransport
from tests.support.deadline import wait_for
from tests.support.link import Link
from tests.support.sshd import running_sshd

if TYPE_CHECKING:
    from collections.abc import Sequence


class Gated(LocalTransport):
    """This machine, silent while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.calls = 0

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        self.calls += 1
        self.gate.wait(30)
        return super().run(argv, input=input, timeout=timeout)


def test_a_silent_host_is_asked_once_and_heard_later(bench, tmp_path):
    gated = Gated()
    silent = Host(gated, root=str(tmp_path), workspace_id="w")
    wanted = {"here": (bench.host, ["a1"]), "silent": (silent, ["a1"])}
    fanout = Fanout(patience_s=20, after_the_first_s=0.1)
    for _ in range(3):
        began = time.monotonic()
        answers = fanout.poll(wanted)
        assert list(answers) == ["here"]
        assert time.monotonic() - began < 15
    assert gated.calls == 1, "one question under way"
    gated.gate.set()
    heard = wait_for(lambda: fanout.poll({"silent": wanted["silent"]}), what="the late answer")
    assert isinstance(heard["silent"], Answer)
    assert heard["silent"].identity == silent.last_identity


def test_an_answer_of_a_connection_that_is_no_more_is_dropped(bench, tmp_path):
    gated = Gated()
    old = Host(gated, root=str(tmp_path), workspace_id="w")
    fanout = Fanout(patience_s=0.1)
    assert fanout.poll({"box": (old, [])}) == {}
    gated.gate.set()
    answer = wait_for(lambda: fanout.poll({"box": (bench.host, [])}), what="the new one's answer")
    assert answer["box"].host is bench.host


def test_many_ssh_hosts_at_once_and_a_dead_one(tmp_path):
    with running_sshd(tmp_path / "sshd") as sshd:
        links = [Link(sshd.port) for _ in range(8)]
        made = []
        for number, link in enumerate(links):
            target = HostTarget(
                kind="ssh", address="127.0.0.1", user=sshd.user, port=link.port, root="",
                host_key=sshd.host_key,
            )  # fmt: skip
            transport = SshTransport(target, config=sshd.client_config, connect_s=20, silence_s=5)
            made.append(Host(transport, root=str(tmp_path / str(number)), workspace_id="w"))
        wanted = {str(number): (host, ["a1"]) for number, host in enumerate(made)}
        fanout = Fanout()
        heard: dict[str, object] = {}

        def all_heard(names: set[str]) -> bool:
            heard.update(fanout.poll({name: wanted[name] for name in names - set(heard)}))
            return set(heard) == names

        wait_for(lambda: all_heard(set(wanted)), what="the first round")
        assert all(isinstance(answer, Answer) for answer in heard.values())
        links[0].freeze()
        heard.clear()
        rounds = 0
        while len(set(heard) - {"0"}) < 7:
            heard.update(fanout.poll(wanted))
            rounds += 1
        assert "0" not in heard or isinstance(heard["0"], Unreachable)
        gone = wait_for(lambda: fanout.poll({"0": wanted["0"]}), what="the dead one")
        assert isinstance(gone["0"], Unreachable)
        for host, link in zip(made, links, strict=True):
            host.close()
            link.close()
