"""The same runbook over a real sshd: a person trusts the key, a cut in the middle, adoption."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote import HostKeyUnknown, LocalTransport
from remote.ssh import SshTransport
from runbook.engine import hosts
from runbook.errors import Exit, RunbookError, explain
from state import HostBinding
from tests.support.deadline import wait_for
from tests.support.sshd import Sshd, running_sshd
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote import HostTarget, Transport

TASKS = """\
  long:
    title: Long
    phase: one
    step: shell
    with:
      sh: "echo x | tee -a ${host.work}/starts; until test -e ${host.work}/go; do sleep 0.1; done"
  after:
    title: After
    phase: one
    needs: [long]
    step: shell
    with: {sh: "echo y >> ${host.work}/starts"}
"""


@pytest.fixture
def sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """A server that known_hosts does not know."""
    with running_sshd(tmp_path / "sshd") as server:
        (server.folder / "known_hosts").write_text("")

        def open_transport(target: HostTarget) -> Transport:
            if target.kind == "local":
                return LocalTransport()
            return SshTransport(target, config=server.client_config)

        monkeypatch.setattr(hosts, "open_transport", open_transport)
        yield server


def test_a_run_over_ssh_survives_a_cut_and_is_adopted(tmp_path: Path, sshd: Sshd) -> None:
    folder = tmp_path / "ws"
    far = tmp_path / "far"
    binding = HostBinding(
        role="box",
        kind="ssh",
        address="127.0.0.1",
        user=sshd.user,
        port=sshd.port,
        root=str(far / "root"),
        work=str(far / "work"),
    )
    with make(folder, TASKS) as service:
        with pytest.raises(HostKeyUnknown) as refused:
            service.bind("box", binding)
        said = explain(refused.value)
        assert said is not None
        assert said.exit_code is Exit.NEEDS_AUTH
        assert f"--accept-fingerprint {refused.value.fingerprint}" in said.hint
        with pytest.raises(RunbookError, match="not SHA256:other"):
            service.bind("box", binding, accept_fingerprint="SHA256:other")
        service.bind("box", binding, accept_fingerprint=refused.value.fingerprint)
        assert service.snapshot().host("box").host_key == sshd.host_key

        cut = []

        def listen(_event: object) -> None:
            if not cut and (far / "work" / "starts").exists():
                sshd.cut()
                cut.append(True)
                (far / "work" / "go").touch()

        assert service.run(listen=listen).outcome == "done"
        assert cut
        assert states(service) == {"long": "done", "after": "done"}
        assert len(service.snapshot().attempts_of("long")) == 1
    wait_for(lambda: (far / "work" / "starts").read_text() == "x\ny\n", what="both outputs")
