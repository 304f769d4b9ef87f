"""A host that answers, but wrongly: told once with what was found, and taken back when it mends."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from remote import Host, LocalTransport, RemoteError, Result, StopReport, Unreachable
from runbook.cli.main import cli
from runbook.engine import hosts
from runbook.engine.events import Info, Problem
from runbook.engine.hosts import Hosts
from runbook.engine.quiet import QuietHost
from runbook.service import Service
from runbook.tui import attention_model
from tests.support.deadline import wait_for
from tests.support.workspaces import left_running, make, states

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from state import HostBinding

TASKS = """\
  waits:
    title: Waits for a word
    phase: one
    step: shell
    with: {sh: "cd ${host.work}; echo $$ > pid; until test -e go; do sleep 0.05; done"}
"""
NOISE = b"Your quota of /home is exhausted.\n"


class Garbling(LocalTransport):
    """This machine; a login script of it writes something in the place of our answers."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code
        self.mended = threading.Event()
        self.asked = 0

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        found = super().run(argv, input=input, timeout=timeout)
        if self.mended.is_set():
            return found
        self.asked += 1
        return replace(found, code=self.code, out=NOISE, err=b"%d: %b" % (self.asked, NOISE))


@pytest.mark.parametrize("code", [0, 1])
def test_it_is_told_everywhere_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    garbling = Garbling(code)

    def meet(self: Hosts, binding: HostBinding) -> QuietHost:
        return QuietHost(
            garbling, root=binding.root, workspace_id=self.workspace_id, secrets=self.secrets
        )

    with make(tmp_path, TASKS) as service:
        left_running(service, tmp_path)
        service._hosts.close()
        monkeypatch.setattr(hosts, "FIRST_PAUSE_S", 0.01)
        monkeypatch.setattr(hosts, "LONGEST_PAUSE_S", 0.01)
        monkeypatch.setattr(Hosts, "meet", meet)
        for verb in ("run", "watch") if code else ("run",):  # the second one finds it so
            told = followed(tmp_path, verb, garbling)
            (problem,) = [event for event in told if isinstance(event, Problem)]
            assert problem.text.startswith("box: its jobs cannot be looked at: ")
            assert "quota of /home is exhausted" in problem.text
            assert "`runbook host shell box`" in problem.hint
        everywhere(service, tmp_path)
        garbling.mended.set()
        (tmp_path / "work" / "go").touch()
        end: list[object] = []
        assert service.run(listen=end.append).outcome == "done"
        assert "box answers again." in [e.text for e in end if isinstance(e, Info)]
        assert "wrongly" not in told_by(tmp_path, "status")
        assert not attention_model.matters(service.view(), now=datetime.now(UTC))


def test_a_stop_that_its_host_refuses_ends_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails: list[RemoteError] = [RemoteError("box cannot stop: no room"), Unreachable("no answer")]
    stop = Host.stop

    def stopped(self: Host, attempt: str, **how: Any) -> StopReport:
        if fails:
            raise fails.pop()
        return stop(self, attempt, **how)

    monkeypatch.setattr(hosts, "FIRST_PAUSE_S", 0.01)
    with make(tmp_path, TASKS) as service:
        left_running(service, tmp_path)
        monkeypatch.setattr(Host, "stop", stopped)
        with pytest.raises(Unreachable):
            service.stop("waits")
        fails.append(RemoteError("box cannot stop: no room"))
        told: list[object] = []
        assert service.run(listen=told.append).outcome == "gate"
        assert service.snapshot().task("waits").reason.startswith("stopped by")
    problems = [event.text for event in told if isinstance(event, Problem)]
    assert problems == ["waits: box cannot be asked: box cannot stop: no room"]


def followed(folder: Path, verb: str, garbling: Garbling) -> list[object]:
    """What an engine tells that asks it at least five times and more."""
    told: list[object] = []
    leave = threading.Event()

    def act() -> Any:
        with Service.open(folder) as own:
            return getattr(own, verb)(listen=told.append, stop_event=leave)

    until, engine = garbling.asked + 5, threading.Thread(target=act)
    engine.start()
    wait_for(lambda: garbling.asked >= until, what="it to be asked again and again")
    leave.set()
    engine.join(60)
    return told


def told_by(folder: Path, *words: str) -> str:
    return " ".join(CliRunner().invoke(cli, ["-w", str(folder), *words]).output.split())


def everywhere(service: Service, folder: Path) -> None:
    """In what looks at the workspace without asking the host."""
    assert states(service) == {"waits": "active"}, "nothing is concluded"
    for words in (["status"], ["brief"]):
        said = told_by(folder, *words)
        assert "host box has answered wrongly since" in said
        assert "quota of /home is exhausted" in said
        assert "host shell box` looks there by hand" in said
    assert "answers wrongly since" in told_by(folder, "host", "list")
    assert "has answered wrongly since" in told_by(folder, "doctor", "--no-hosts")
    (matter,) = attention_model.matters(service.view(), now=datetime.now(UTC))
    assert matter.title == "box answers wrongly"
    assert "quota of /home is exhausted" in matter.why
