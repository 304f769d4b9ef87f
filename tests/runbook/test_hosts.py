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
from tests.support.workspaces import make, states

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
    changed = HostKeyChanged(
        "box", expected="ssh-ed25519 A", found="ssh-ed25519 B",
        fingerprint="SHA256:b", expected_fingerprint="SHA256:a",
    )  # fmt: skip
    shown = [changed]
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
    monkeypatch.setattr(runner, "STOP_TAKEN_OVER_S", 1.0)
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
        down.clear()
        other.join(timeout=60)
        assert not other.is_alive()
        assert service.snapshot().task("hello").reason.startswith("stopped by")


def elsewhere(folder: Path) -> None:
    with Service.open(folder) as service:
        service.run()
