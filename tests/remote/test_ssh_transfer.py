"""Files over a real sshd: while keys change, the server dies, and the link goes silent."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from remote import Host, HostTarget, Unreachable
from remote.ssh import SshTransport
from remote.transfer import BLOCK
from tests.support.link import Link
from tests.support.sshd import running_sshd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 10 * BLOCK + 17


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """The server changes keys after every 16 MiB, in the middle of what flows."""
    with running_sshd(tmp_path_factory.mktemp("sshd"), options="RekeyLimit 16M") as server:
        yield server


@pytest.fixture
def reached(sshd, tmp_path, request) -> Iterator[tuple[Host, Link]]:
    """Silence is noticed soon only where a test waits for that: a busy machine is silent too."""
    silence_s, connect_s = getattr(request, "param", (10.0, 10.0))
    link = Link(sshd.port)
    target = HostTarget(
        kind="ssh", address="127.0.0.1", user=sshd.user, port=link.port,
        root=str(tmp_path / "root"), host_key=sshd.host_key,
    )  # fmt: skip
    host = Host(
        SshTransport(target, config=sshd.client_config, silence_s=silence_s, connect_s=connect_s),
        root=target.root, workspace_id="w",
    )  # fmt: skip
    yield host, link
    host.close()
    link.close()


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(random.Random(3).randbytes(SIZE))
    return path


def test_keys_may_change_in_the_middle(reached, source, tmp_path, sshd):
    host, _ = reached
    there, back = tmp_path / "there", tmp_path / "back"
    assert host.push(source, str(there), headroom=0).cuts == 0
    assert host.pull(str(there), back, headroom=0).cuts == 0
    assert back.read_bytes() == source.read_bytes()
    cipher = host.transport.bulk()._hops[-1].transport.remote_cipher
    assert "gcm" in cipher, "half the processor time of the others"


@pytest.mark.parametrize("way", ["push", "pull"])
def test_every_connection_killed_again_and_again(reached, source, tmp_path, sshd, way):
    host, _ = reached
    target, killed = tmp_path / "target", []

    def kill(progress) -> None:
        if progress.phase == "copying" and len(killed) < 3:
            killed.append(progress.done)
            sshd.cut()

    if way == "push":
        report = host.push(source, str(target), headroom=0, progress=kill)
    else:
        report = host.pull(str(source), target, headroom=0, progress=kill)
    assert killed
    assert report.cuts
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("reached", [(2.0, 4.0)], ids=["soon"], indirect=True)
def test_a_silent_link_is_given_up_and_what_arrived_is_kept(reached, source, tmp_path):
    host, link = reached
    target = tmp_path / "target"
    link.break_after("up", 6 * BLOCK, how="freeze")
    with pytest.raises(Unreachable) as given_up:
        host.push(source, str(target), headroom=0, patience_s=2)
    assert "what arrived is kept" in given_up.value.hint
    assert not target.exists()
    link.mend()
    assert host.push(source, str(target), headroom=0).sent <= SIZE - 3 * BLOCK
    assert target.read_bytes() == source.read_bytes()
