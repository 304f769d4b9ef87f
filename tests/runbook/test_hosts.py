"""A dead host is asked again after growing pauses, and every task on it waits for the same try."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from remote import HostKeyChanged, Result, Unreachable
from runbook.engine import hosts, runner
from runbook.engine.events import Problem
from runbook.engine.hosts import Hosts, LeftAlone
from runbook.service import Service
from tests.support.deadline import wait_for
from tests.support.workspaces import cli, make, settle, states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remote import HostTarget, Transport
    from runbook.engine.events import EngineEvent

TASKS = """\
  hello:
    title: Hello
    phase: one
    step: shell
    with: {argv: ["true"]}
"""
ENDING = """\
  well:
    title: Ends well
    phase: one
    step: shell
    with: {sh: "until test -e ${host.work}/go; do sleep 0.05; done"}
  badly:
    title: Ends badly
    phase: one
    step: shell
    retry: {max: 3, on: [exit]}
    with: {sh: "until test -e ${host.work}/go; do sleep 0.05; done; exit 3"}
"""


def test_a_pause_grows_and_ends(tmp_path: Path) -> None:
    now = [0.0]
    with make(tmp_path, TASKS) as service:
        snapshot = service.snapshot()
        known = Hosts(workspace_id="w", clock=lambda: now[0])
        known.of_role(snapshot, "box")
        for pause in (2.0, 4.0, 8.0):
            known.failed("box")
            with pytest.raises(LeftAlone):
                known.of_role(snapshot, "box")
            now[0] += pause
            known.of_role(snapshot, "box")
        known.answered("box")
        known.failed("box")
        now[0] += 2.0
        known.of_role(snapshot, "box")
        known.close()


def test_a_run_goes_on_when_the_host_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is silent for its first calls; nothing is concluded, and then the task runs."""
    silent = [Unreachable("no answer"), Unreachable("no answer")]
    with make(tmp_path, TASKS) as service:
        failing(monkeypatch, lambda: silent.pop() if silent else None)
        result = service.run()
        assert result.outcome == "done", result.reason
        assert states(service) == {"hello": "done"}
        assert service.snapshot().host("box").unreachable_since is None
    assert not silent


def failing(monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception | None]) -> None:
    """From now on each command on a host ends with this error, as long as there is one."""
    real = hosts.open_transport

    class Failing:
        label, host_key = "box", ""

        def __init__(self, target: HostTarget) -> None:
            self.real: Transport = real(target)

        def run(self, argv: list[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
            if found := error():
                raise found
            return self.real.run(argv, input=input, timeout=timeout)

        def close(self) -> None:
            self.real.close()

    monkeypatch.setattr(hosts, "open_transport", Failing)


def test_a_run_says_how_to_take_the_key_of_a_rebuilt_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [other_key()]
    told: list[EngineEvent] = []
    with make(tmp_path, TASKS) as service:
        failing(monkeypatch, lambda: shown.pop() if shown else None)
        assert service.run(listen=told.append).outcome == "done"
    hints = [event.hint for event in told if isinstance(event, Problem)]
    assert len(hints) == 1
    assert "`runbook host repin box`" in hints[0]
    assert "jobs go on" not in hints[0], "nobody knows that"


def test_a_stop_that_finds_no_machine_is_seen_through_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "STOP_TAKEN_OVER_S", 3600.0)  # at once, not by waiting
    down: list[Exception] = []
    failing(monkeypatch, lambda: Unreachable("no answer") if down else None)
    with make(tmp_path, TASKS.replace('["true"]', '[sleep, "1000"]')) as service:
        other = threading.Thread(target=elsewhere, args=(tmp_path,))
        other.start()
        wait_for(lambda: states(service)["hello"] == "active", what="the task to be active")
        down.append(Unreachable("no answer"))
        with pytest.raises(Unreachable) as silent:
            service.stop("hello")
        assert "the stop is written down" in silent.value.hint
        told = cli(tmp_path, "status")
        assert "stop pending, `run` carries it out once box answers (stopped by" in told.stdout
        assert "stop pending" in service.brief()
        down.clear()
        other.join(timeout=60)
        assert not other.is_alive()
        assert service.snapshot().task("hello").reason.startswith("stopped by")


def test_what_ended_before_a_pending_stop_came_keeps_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 0: done. Exit 3: failed by itself, and not tried again against the person's stop."""
    down: list[bool] = []
    failing(monkeypatch, lambda: Unreachable("no answer") if down else None)
    with make(tmp_path, ENDING) as service:
        begun = threading.Event()
        leaves = threading.Thread(target=elsewhere, args=(tmp_path, begun))
        leaves.start()
        for name in ("well", "badly"):
            wait_for(lambda name=name: started(service, name), what=f"{name} to run")
        begun.set()
        leaves.join(timeout=60)
        down.append(True)
        for name in ("well", "badly"):
            with pytest.raises(Unreachable):
                service.stop(name)
            service._hosts.answered("box")
        (tmp_path / "work" / "go").touch()
        down.clear()
        settle(tmp_path)
        service.run()
        assert states(service) == {"well": "done", "badly": "failed"}
        (attempt,) = service.snapshot().attempts_of("badly")
        assert (attempt.cls, attempt.exit_code) == ("exit", 3)


def started(service: Service, name: str) -> bool:
    attempt = service.snapshot().latest_attempt(name)
    return attempt is not None and attempt.state == "running"


def test_another_host_key_is_told_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [other_key()]
    with make(tmp_path, TASKS) as service:
        failing(monkeypatch, lambda: shown[0] if shown else None)
        leave = threading.Event()
        other = threading.Thread(target=elsewhere, args=(tmp_path, leave))
        other.start()
        wait_for(lambda: service.snapshot().host("box").unreachable_since, what="the silence")
        leave.set()
        other.join(timeout=60)
        step = service.view().next
        assert (step.command, step.person) == ("runbook host repin box", True)
        assert "SHA256:b" in step.reason
        told = cli(tmp_path, "status").stdout
        assert "it shows another host key, SHA256:b (pinned: SHA256:a)" in told
        assert "SHA256:b" in service.brief()
        shown.clear()
        service.bind("box", service.snapshot().host("box"))
        assert service.view().next.command == "runbook run"
        assert "another host key" not in cli(tmp_path, "status").stdout


def other_key() -> HostKeyChanged:
    return HostKeyChanged(
        "box", expected="ssh-ed25519 A", found="ssh-ed25519 B",
        fingerprint="SHA256:b", expected_fingerprint="SHA256:a",
    )  # fmt: skip


def elsewhere(folder: Path, leave: threading.Event | None = None) -> None:
    with Service.open(folder) as service:
        service.run(stop_event=leave)
