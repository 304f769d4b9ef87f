"""A fleet of servers: busy is told from wedged, one is restarted without the others, drained first.

The servers are stand-ins with SGLang's answers (tests/support/fake_sglang.py); its own behaviour is
in test_serve_sglang.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from runbook.engine import draining, runner, services
from runbook.service import Service
from tests.support import fake_sglang
from tests.support.deadline import wait_for
from tests.support.ports import free_ports
from tests.support.workspaces import cli, command, make, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Fleet:
    """A workspace with a family of two servers and a task that needs them."""

    def __init__(self, folder: Path, *, retry: str = "", **more: str) -> None:
        self.folder = folder
        self.venv = folder / "venv"
        self.ports = free_ports(2)
        # Long, where no probe is to go unanswered: a healthy server of a busy machine takes time.
        watch = {"probe_timeout": "30s", "stuck_after": "1m", **more}
        fake_sglang.install(self.venv)
        tasks = f"""\
  serve:
    title: Server
    phase: one
    for_each: {{port: {self.ports}}}
    step: serve
    {retry}
    with:
      venv: {self.venv}
      model: /models/m
      served_name: m
      port: ${{each.port}}
      device: cpu
      grace: 5
      stagger: 500ms
      probe_every: 500ms
      probe_timeout: {watch["probe_timeout"]}
      stuck_after: {watch["stuck_after"]}
      strikes: 2
  use:
    title: Use them
    phase: one
    needs: [serve]
    step: shell
    with: {{sh: "while ! test -e ${{host.work}}/go; do sleep 0.1; done"}}
"""
        make(folder, tasks).close()
        self.service = Service.open(folder)
        self.names = [f"serve[{port}]" for port in self.ports]

    def tell(self, index: int, **mode: object) -> None:
        fake_sglang.tell(self.venv, self.ports[index], **mode)

    def state(self, index: int) -> str:
        return states(self.service)[self.names[index]]

    def attempts(self, index: int) -> int:
        return len(self.service.snapshot().attempts_of(self.names[index]))

    def reason(self, index: int) -> str:
        return self.service.snapshot().task(self.names[index]).reason

    def load(self, index: int, message: str) -> dict[str, float]:
        """What is shown of it, once that says so and at which rate it works."""
        live = self.service.view().live.get(self.names[index])
        told = (live and live.progress) or {"metrics": {}}
        shown = told.get("message") == message and told["metrics"].get("tok/s", 0) > 0
        return dict(told["metrics"]) if shown else {}

    def pid(self, index: int) -> int:
        snapshot = self.service.snapshot()
        attempt = snapshot.latest_attempt(self.names[index])
        assert attempt is not None
        host = self.service._hosts.of_role(snapshot, "box")
        pid = host.poll([attempt.id])[attempt.id].pid
        assert pid is not None
        return pid

    @contextmanager
    def running(self) -> Iterator[list[str]]:
        """An engine at work, with a client of its own; what it said."""
        said: list[str] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                with Service.open(self.folder) as own:
                    own.run(stop_event=leave, listen=lambda event: said.append(str(event)))
            except BaseException as error:  # noqa: BLE001 (raised again by the test)
                failed.append(error)

        leave = threading.Event()
        engine = threading.Thread(target=run)
        engine.start()
        try:
            wait_for(
                lambda: states(self.service)["use"] == "active", limit_s=60, what="both to serve"
            )
            yield said
        finally:
            leave.set()
            engine.join(60)
        assert not failed, failed
        assert not engine.is_alive()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of this process look often."""
    monkeypatch.setattr(runner, "POLL_S", (0.3, 0.8))
    monkeypatch.setattr(services, "LOOK_EVERY_S", 0.2)
    monkeypatch.setattr(draining, "DRAIN_EVERY_S", 0.2)
    monkeypatch.setattr(draining, "SETTLE_S", 0.3)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Nothing of it outlives its test."""
    made = Fleet(tmp_path)
    yield made
    end(made)


def end(made: Fleet) -> None:
    for index in (0, 1):
        made.tell(index)
    for name, state in states(made.service).items():
        if state in ("starting", "serving", "unhealthy", "draining", "active"):
            made.service.stop(name)
    made.service.close()


def test_busy_is_told_from_wedged_and_another_server_is_left_alone(fleet: Fleet) -> None:
    fleet.tell(1, public=True)
    with fleet.running() as said:
        fleet.tell(0, busy=True, running=8, queued=40, accepts=3.25)
        before = len(fake_sglang.requests(fleet.venv, fleet.ports[0]))
        wait_for(
            lambda: len(fake_sglang.requests(fleet.venv, fleet.ports[0])) > before + 5,
            limit_s=60,
            what="several looks",
        )
        # The engine leaves what it saw after it has seen it.
        load = wait_for(lambda: fleet.load(0, "8 running, 40 queued"), what="its load to be shown")
        assert (load["state pool used"], load["accept length"]) == (0.5, 3.25)
        assert fleet.state(0) == "serving"

        fleet.tell(0, wedged=True, running=3)
        wait_for(lambda: fleet.state(0) == "unhealthy", limit_s=60, what="the wedge to be seen")
        assert "wedged: /health was answered with 503, 2 times in a row" in fleet.reason(0)
        assert "nothing moved meanwhile (3 running, 0 queued)" in fleet.reason(0)
        checks = fleet.service.snapshot().checks_of(fleet.names[0])
        second = f"{fleet.names[1]}: port {fleet.ports[1] + 1000} listens on all interfaces"
        assert (str(said).count(second), str(said).count("listens on all")) == (1, 1)
        assert [c.evidence["running"] for c in checks if c.verdict == "fail"] == [3.0]
        assert f"runbook restart '{fleet.names[0]}'" in fleet.service.view().next.command

        fleet.tell(0)
        wait_for(lambda: fleet.state(0) == "serving", limit_s=60, what="it to serve again")
        assert (fleet.attempts(0), fleet.attempts(1), fleet.state(1)) == (1, 1, "serving")


def test_a_server_whose_health_is_a_lie_is_restarted_by_its_policy_and_it_alone(
    tmp_path: Path,
) -> None:
    policy = "retry: {max: 1, on: [time_limit]}"
    fleet = Fleet(tmp_path, retry=policy, stuck_after="300ms", probe_timeout="3s")
    with fleet.running():
        other = fleet.pid(1)
        fleet.tell(0, liar=True, running=2)
        wait_for(lambda: fleet.attempts(0) == 2, limit_s=60, what="a second attempt")
        fleet.tell(0)
        wait_for(lambda: fleet.state(0) == "serving", limit_s=60, what="it to serve again")
        assert fleet.pid(1) == other
        first = fleet.service.snapshot().attempts_of(fleet.names[0])[0]
        assert (first.state.value, first.cls) == ("stopped", "time_limit")
        said = str(fleet.service.events(task=fleet.names[0]))
        assert "a generation of four tokens was not answered" in said
    end(fleet)


def test_restart_lets_one_server_answer_first_and_leaves_the_others(fleet: Fleet) -> None:
    with fleet.running():
        other = fleet.pid(1)
        fleet.tell(0, running=2)
        workspace = fleet.service.snapshot().meta.workspace_id
        marks = fleet.folder / ".runbook" / "host" / workspace / "draining"
        fleet.service.restart(fleet.names[0], drain_s=300)
        address = f"127.0.0.1:{fleet.ports[0]}"
        wait_for((marks / address).exists, limit_s=60, what="clients to be told")
        assert (fleet.state(0), fleet.attempts(0)) == ("draining", 1)
        fleet.tell(0)  # it has answered
        wait_for(lambda: fleet.attempts(0) == 2, limit_s=60, what="a second attempt")
        wait_for(lambda: fleet.state(0) == "serving", limit_s=60, what="it to serve again")
        assert list(marks.iterdir()) == []
        assert fleet.pid(1) == other


def test_restart_without_an_engine_and_one_that_is_killed(fleet: Fleet) -> None:
    with fleet.running():
        pass
    fleet.tell(0, running=2)
    done = cli(fleet.folder, "restart", fleet.names[0], "--drain", "1s", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["result"]["outcome"] == "done"
    said = str(fleet.service.events(task=fleet.names[0], limit=10_000))
    assert "restarted by" in said
    assert "2 requests were broken off" in said
    assert (fleet.state(0), fleet.attempts(0), fleet.attempts(1)) == ("serving", 2, 1)

    words = command(fleet.folder, "restart", fleet.names[0], "--drain", "5m")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    wait_for(lambda: fleet.state(0) == "draining", limit_s=60, what="it to drain")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (fleet.state(0), fleet.attempts(0)) == ("draining", 2)
    fleet.tell(0)
    fleet.service.run(only=[fleet.names[0]])
    assert (fleet.state(0), fleet.attempts(0), fleet.attempts(1)) == ("serving", 3, 1)


def test_what_ended_a_server_is_said_with_the_next_step_and_not_tried_again(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path, retry="retry: {max: 2, on: [exit]}")
    fleet.tell(0, says=["loading", "sglang serve: error: unrecognized arguments: --cuda-graph-bs 8",
                        "Received sigquit from a child process."], exit=2)  # fmt: skip
    fleet.tell(1, says=[("RuntimeError: Not enough memory. Please try to increase "
                        "--mem-fraction-static.")], exit=1)  # fmt: skip
    result = fleet.service.run()
    assert result.outcome == "failed"
    assert [fleet.attempts(0), fleet.attempts(1)] == [1, 1], "unchanged, it would fail again"
    assert "exit code 2: its command line is refused. Next: write --cuda-graph-bs-decode" in (
        fleet.reason(0)
    )
    classes = [fleet.service.snapshot().latest_attempt(name) for name in fleet.names]
    assert [attempt and attempt.cls for attempt in classes] == ["exit", "oom"]
    told = cli(fleet.folder, "logs", fleet.names[1]).stdout
    assert "no room for the KV pool beside the weights. Next: raise `mem_fraction`" in told
    fleet.service.close()


def test_what_cannot_be_restarted_is_said(fleet: Fleet) -> None:
    one = cli(fleet.folder, "restart", "use")
    assert (one.returncode, "`use` is no server: its step is `shell`" in one.stderr) == (2, True)
    two = cli(fleet.folder, "restart", fleet.names[0])
    assert (two.returncode, "it is ready" in two.stderr) == (2, True)
    three = cli(fleet.folder, "restart", fleet.names[0], "--drain", "soon")
    assert (three.returncode, "'soon' is not a duration" in three.stderr) == (2, True)
