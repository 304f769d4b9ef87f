"""A dead host is asked again after growing pauses, and every task on it waits for the same try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remote import Result, Unreachable
from runbook.engine import hosts
from runbook.engine.hosts import Hosts, LeftAlone
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from pathlib import Path

    from remote import HostTarget, Transport

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
    silent = [2]
    real = hosts.open_transport

    class Flaky:
        label, host_key = "flaky", ""

        def __init__(self, target: HostTarget) -> None:
            self.real: Transport = real(target)

        def run(self, argv: list[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
            if silent[0]:
                silent[0] -= 1
                raise Unreachable("no answer")
            return self.real.run(argv, input=input, timeout=timeout)

        def close(self) -> None:
            self.real.close()

    with make(tmp_path, TASKS) as service:
        monkeypatch.setattr(hosts, "open_transport", Flaky)
        result = service.run()
        assert result.outcome == "done", result.reason
        assert states(service) == {"hello": "done"}
        assert service.snapshot().host("box").unreachable_since is None
    assert silent == [0]
