"""`~` in the folders of a machine, as every one that is bound without more words has it.

Jobs get their words as they are, with no shell between that would put the home in its place.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from remote.ssh import SshTransport
from runbook.cli.host_binding import binding_of
from runbook.engine import hosts
from tests.support.sshd import running_sshd
from tests.support.workspaces import cli, make, states

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from remote import HostTarget, Transport

TASKS = """\
  make:
    title: Make
    phase: one
    step: shell
    with: {argv: [touch, "${host.work}/made"]}
    done_when: [{file: {path: "${host.work}/made"}}]
  copy:
    title: Copy
    phase: one
    needs: [make]
    step: upload
    with: {venv: PREFIX, source: "${host.work}", url: "file://${host.work}-there"}
"""
ONE = TASKS[: TASKS.index("  copy:")]


def test_a_job_gets_the_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with make(tmp_path / "w", TASKS.replace("PREFIX", sys.prefix)) as service:
        (bound,) = service.snapshot().hosts
        service.bind("box", replace(bound, root="~/jobs", work="~/data"))
        assert service.run().outcome == "done", states(service)
        assert (tmp_path / "home/data/made").exists()
        assert (tmp_path / "home/data-there/made").exists()
        assert not list(tmp_path.rglob("~"))


def test_a_machine_that_is_bound_with_nothing_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_sshd(tmp_path / "sshd") as server, make(tmp_path / "w", ONE) as service:

        def open_transport(target: HostTarget) -> Transport:
            return SshTransport(target, config=server.client_config)

        monkeypatch.setattr(hosts, "open_transport", open_transport)
        unsaid = {"port": server.port, "identity": "", "root": "", "work": "",
                  "usd_per_hour": None, "ends_at": None}  # fmt: skip
        bound = binding_of("box", f"{server.user}@127.0.0.1", service.workspace, **unsaid)
        service.bind("box", bound)
        assert service.run().outcome == "done", states(service)
        assert (server.folder / "home/.runbook/work/made").exists()
        assert not list(tmp_path.rglob("~"))


def test_a_folder_that_is_anywhere_is_refused(tmp_path: Path) -> None:
    make(tmp_path, TASKS.replace("PREFIX", sys.prefix)).close()
    for words in (["--work", "data"], ["--root", "jobs/here"]):
        done = cli(tmp_path, "host", "bind", "box", "local", *words)
        assert done.returncode == 2, done.stderr
        assert f"{' '.join(words)} is no absolute path" in done.stderr
        assert f"or ~/{words[1]} for one in the home" in done.stderr
