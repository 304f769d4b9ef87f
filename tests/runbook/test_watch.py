"""`runbook watch`: the engine kept awake, replaceable at any moment, never two at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from remote import Result, Unreachable, open_transport
from runbook.doctor import check_up
from runbook.engine import hosts, watch
from runbook.engine.events import Info, Problem, TaskMoved
from runbook.plan import load_text
from runbook.service import Service
from state import LeaseHeld, RevisionMoved
from tests.support.deadline import wait_for
from tests.support.workspaces import HEAD, cli, command, make, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote import HostTarget, Transport
    from runbook.engine.events import EngineEvent
    from runbook.views import RunResult

LONG = """\
  long:
    title: Long
    phase: one
    step: shell
    with: {sh: "echo x >> ${host.work}/starts; until [ -e ${host.work}/go ]; do sleep 0.05; done"}
"""
QUICK = """\
  hello:
    title: Hello
    phase: one
    step: shell
    with: {argv: ["true"]}
"""
GATED = """\
  rent:
    title: Rent
    phase: one
    step: manual
    with: {ask: "Is it rented?"}
  after:
    title: After
    phase: one
    needs: [rent]
    step: shell
    with: {argv: ["true"]}
"""
FAILING = """\
  picky:
    title: Picky
    phase: one
    step: shell
    with: {sh: "test -e ${host.work}/go"}
"""


class Watching:
    """A watch in a thread of this process."""

    def __init__(self, folder: Path, *, until_done: bool = True) -> None:
        self.events: list[EngineEvent] = []
        self.leave = threading.Event()
        self.results: list[RunResult] = []
        self._folder, self._until_done = folder, until_done
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with Service.open(self._folder) as service:
            result = service.watch(
                until_done=self._until_done, stop_event=self.leave, listen=self.events.append
            )
            self.results.append(result)

    def said(self, word: str) -> bool:
        texts = [e.text for e in list(self.events) if isinstance(e, Info | Problem)]
        return any(word in text for text in texts)

    def result(self) -> RunResult:
        self.thread.join(timeout=60)
        assert self.results, "the watch did not end"
        return self.results[0]


@contextmanager
def watching(folder: Path, *, until_done: bool = True) -> Iterator[Watching]:
    one = Watching(folder, until_done=until_done)
    one.thread.start()
    try:
        yield one
    finally:
        one.leave.set()
        one.thread.join(timeout=60)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.02)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(folder, "watch", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_it_waits_for_a_person_and_goes_on(tmp_path: Path) -> None:
    with make(tmp_path, GATED) as service, watching(tmp_path) as one:
        wait_for(lambda: one.said("Is it rented?"), what="the gate to be told")
        assert not one.results
        service.approve("rent", "yes")
        assert one.result().outcome == "done"
        assert states(service) == {"rent": "done", "after": "done"}
        assert service.progress_is_current()
        assert service.view().engine is None


def test_it_takes_up_retries_and_new_tasks(tmp_path: Path) -> None:
    with make(tmp_path, FAILING) as service, watching(tmp_path) as one:
        wait_for(lambda: states(service) == {"picky": "failed"}, what="the failure")
        (tmp_path / "work" / "go").touch()
        wait_for(lambda: one.said("waiting for you"), what="the failure to be told")
        make(tmp_path, FAILING + QUICK).close()
        wait_for(lambda: states(service).get("hello") == "done", what="the new task")
        assert not one.results
        service.retry("picky")
        assert one.result().outcome == "done"


def test_without_until_done_it_stays(tmp_path: Path) -> None:
    with make(tmp_path, QUICK) as service, watching(tmp_path, until_done=False) as one:
        wait_for(lambda: one.said("waiting for new work: every task is done"), what="the end")
        holder = service.view().engine
        assert holder is not None
        assert "watch" in holder
        assert not one.results
        one.leave.set()
        assert one.result().outcome == "interrupted"


def test_a_task_that_could_not_start_is_tried_again_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ws"
    Service.create(folder, load_text(HEAD + QUICK, path="runbook.yaml", params={})).close()
    monkeypatch.setattr(watch, "REFUSED_S", 0.1)
    with watching(folder) as one:
        wait_for(lambda: one.said("No machine is bound"), what="the refusal")
        assert cli(folder, "host", "bind", "box", "local").returncode == 0
        assert one.result().outcome == "done"
        assert len([e for e in one.events if isinstance(e, Problem)]) == 1


def test_a_host_that_comes_back_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()
    silent.set()
    real = open_transport

    class Flaky:
        label, host_key = "flaky", ""

        def __init__(self, target: HostTarget) -> None:
            self.real: Transport = real(target)

        def run(self, argv: list[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
            if silent.is_set():
                raise Unreachable("no answer")
            return self.real.run(argv, input=input, timeout=timeout)

        def close(self) -> None:
            self.real.close()

    with make(tmp_path, QUICK) as service:
        monkeypatch.setattr(hosts, "open_transport", Flaky)
        monkeypatch.setattr(hosts.Breaker, "failed", lambda *_: None)
        with watching(tmp_path) as one:
            wait_for(lambda: one.said("no answer"), what="the silence to be told")
            assert states(service) == {"hello": "ready"}
            silent.clear()
            assert one.result().outcome == "done"
            assert one.said("box answers again") or states(service) == {"hello": "done"}


def test_killed_it_is_replaced_by_a_run_that_adopts(tmp_path: Path) -> None:
    with make(tmp_path, LONG) as service:
        process = start(tmp_path)
        wait_for((tmp_path / "work" / "starts").exists, what="the job to start")
        process.kill()
        process.communicate()
        assert service.view().engine is None
        (tmp_path / "work" / "go").touch()
        again = cli(tmp_path, "run")
        assert again.returncode == 0, again.stdout + again.stderr
        assert len(service.snapshot().attempts_of("long")) == 1
        assert check_up(tmp_path).healthy
    assert (tmp_path / "work" / "starts").read_text() == "x\n"


def test_two_watches_and_a_polite_end(tmp_path: Path) -> None:
    with make(tmp_path, LONG) as service:
        process = start(tmp_path)
        wait_for((tmp_path / "work" / "starts").exists, what="the job to start")
        second = cli(tmp_path, "watch")
        assert second.returncode == 6, second.stdout + second.stderr
        assert "engine is held by" in second.stderr
        with pytest.raises(LeaseHeld):
            service.run()
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 10, said
        assert "long" in said
        assert "Left: stopped on request" in said
        assert states(service) == {"long": "active"}
        (tmp_path / "work" / "go").touch()
        ended = cli(tmp_path, "watch", "--until-done", "--json")
        assert ended.returncode == 0, ended.stderr
        answer = json.loads(ended.stdout)
        assert (answer["verb"], answer["data"]["result"]["outcome"]) == ("watch", "done")
    assert (tmp_path / "work" / "starts").read_text() == "x\n"


def test_ctrl_c_ends_it_while_it_waits(tmp_path: Path) -> None:
    make(tmp_path, GATED).close()
    process = start(tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        if "waiting for you" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 10


def test_a_problem_is_passed_on_once_until_its_task_moves() -> None:
    heard: list[EngineEvent] = []
    once = watch.Once(heard.append)
    problem = Problem(text="port 1 is taken", task="a")
    moved = TaskMoved(task="a", state="ready", reason="", seconds=None)
    silent = Problem(text="box: no answer")
    for event in (problem, problem, silent, silent, moved, problem):
        once(event)
    assert heard == [problem, silent, silent, moved, problem]


def test_wrong_input(tmp_path: Path) -> None:
    with make(tmp_path, QUICK) as service:
        service.expect_rev = 1
        with pytest.raises(RevisionMoved):
            service.watch()
        assert service.view().engine is None
    told = cli(tmp_path, "watch", "hello")
    assert (told.returncode, "hello" in told.stderr) == (2, True)
