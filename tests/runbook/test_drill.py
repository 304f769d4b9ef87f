"""The rehearsal itself, here and over a real sshd; and that it tells what does not survive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from remote import Host, HostTarget, LocalTransport
from remote.ssh import SshTransport
from runbook.drill import Drill
from tests.support.sshd import running_sshd
from tests.support.workspaces import cli, make

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

TASKS = """\
  one:
    title: One
    phase: one
    step: shell
    with: {argv: ["true"]}
"""
NAMES = ["launch", "cut", "adopt", "launch again", "exit", "log", "stop"]


def test_the_verb_tells_what_survived_and_leaves_the_graph_alone(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        before = service.snapshot().revision
    done = cli(tmp_path, "doctor", "--drill", "box")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all of it survived" in done.stdout
    done = cli(tmp_path, "host", "drill", "box", "--json")
    told = json.loads(done.stdout)
    assert told["revision"] == before
    assert [step["name"] for step in told["data"]["steps"]] == NAMES


def test_over_ssh_with_the_server_cutting_too(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "sshd") as sshd:
        target = HostTarget(
            kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port, root="",
            host_key=sshd.host_key,
        )  # fmt: skip

        def meet() -> Host:
            sshd.cut()
            transport = SshTransport(target, config=sshd.client_config)
            return Host(transport, root=str(tmp_path / "root"), workspace_id="w")

        steps = list(Drill(meet).run())
    assert [step.name for step in steps] == NAMES
    assert all(step.ok for step in steps), steps


def test_a_log_that_was_damaged_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meet() -> Host:
        return Host(LocalTransport(), root=str(tmp_path), workspace_id="w")

    for step in Drill(meet).run():
        if step.name == "adopt":
            [log] = tmp_path.glob("w/jobs/drill-*-count/out.log")
            with log.open("ab") as file:
                file.write(b"somebody else's line\n")
        if step.name == "log":
            assert not step.ok
            assert "NOT what was written" in step.found
            return
    raise AssertionError("the log was not looked at")
