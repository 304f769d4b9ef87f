"""Services in the engine: ready by their checks alone, stopped for certain, dead when they die.

The server is a stand-in with the real one's command line and answers; SGLang itself is started by
the demo and by the thinking-mode tests.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from runbook.engine import services
from runbook.engine.events import TaskMoved
from runbook.service import Service
from state import FailureClass
from tests.support.deadline import wait_for
from tests.support.ports import free_port
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from pathlib import Path

SERVER = """\
import json, pathlib, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

mode = pathlib.Path(sys.argv[0]).with_name("mode").read_text()
port = int(sys.argv[sys.argv.index("--port") + 1])

class Handler(BaseHTTPRequestHandler):
    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(503 if mode == "loading" else 200, {})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"message": {"content": "yes"}, "text": "yes", "finish_reason": "length"}
        self.answer(200, {"choices": [choice], "usage": {"completion_tokens": 1}})

    def log_message(self, *_):
        pass

if mode == "broken":
    sys.exit("no weights here")
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def runbook(folder: Path, mode: str, within: str = "60s") -> str:
    """A server, a task that needs it, and the stop."""
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "mode").write_text(mode)
    program = programs / "transformers"
    program.write_text(f"#!{sys.executable}\n{SERVER}")
    program.chmod(0o755)
    return f"""\
  server:
    title: Server
    phase: one
    step: serve
    with:
      engine: transformers
      venv: {folder}/venv
      model: /models/m
      served_name: m
      port: {free_port()}
      device: cpu
      ready_within: {within}
      grace: 5
  use:
    title: Use it
    phase: one
    needs: [server]
    step: shell
    with: {{sh: "echo used >> ${{host.work}}/used"}}
  stop:
    title: Stop it
    phase: one
    needs: [use]
    step: stop
    with: {{tasks: [server]}}
"""


def server_pid(service: Service) -> int:
    """The process that serves, from the host's own report."""
    snapshot = service.snapshot()
    attempt = snapshot.latest_attempt("server")
    assert attempt is not None
    host = service._hosts.of_role(snapshot, "box")
    pid = host.poll([attempt.id])[attempt.id].pid
    assert pid is not None
    return pid


def test_a_service_is_ready_by_its_checks_then_stopped_and_done(tmp_path: Path) -> None:
    with make(tmp_path, runbook(tmp_path, "good")) as service:
        assert service.run().outcome == "done"
        assert states(service) == {"server": "done", "use": "done", "stop": "done"}
        snapshot = service.snapshot()
        names = {check.name.split()[0]: check.verdict for check in snapshot.checks_of("server")}
        assert names == {"process_alive": "pass", "http": "pass", "http_generate": "pass"}
        attempt = snapshot.latest_attempt("server")
        assert attempt is not None
        assert (attempt.state.value, attempt.cls) == ("stopped", FailureClass.STOPPED)
        assert snapshot.task("server").out["url"].startswith("http://127.0.0.1:")


def test_a_server_that_dies_while_loading_says_its_last_words(tmp_path: Path) -> None:
    with make(tmp_path, runbook(tmp_path, "broken")) as service:
        result = service.run()
        assert result.outcome == "failed"
        assert "the server ended with exit code 1: no weights here" in result.reason
        assert states(service)["use"] == "blocked"


def test_a_server_that_never_gets_ready_is_stopped_in_time(tmp_path: Path) -> None:
    with make(tmp_path, runbook(tmp_path, "loading", within="3s")) as service:
        result = service.run()
        assert result.outcome == "failed"
        assert "not ready within 3 s: http " in result.reason
        attempt = service.snapshot().latest_attempt("server")
        assert attempt is not None
        assert attempt.cls is FailureClass.TIME_LIMIT


def test_a_server_killed_while_serving_is_noticed_and_can_be_retried(tmp_path: Path) -> None:
    tasks = runbook(tmp_path, "good").replace(
        "echo used", "while ! test -e ${host.work}/go; do sleep 0.1; done; echo used"
    )
    with make(tmp_path, tasks) as service:
        results = []
        runner = threading.Thread(target=lambda: results.append(run_elsewhere(tmp_path)))
        runner.start()
        wait_for(lambda: states(service)["use"] == "active", what="the task that uses it")
        os.kill(server_pid(service), signal.SIGKILL)
        wait_for(lambda: states(service)["server"] == "failed", what="the death to be noticed")
        (tmp_path / "work" / "go").touch()
        runner.join(timeout=60)
        assert not runner.is_alive()
        assert results == ["failed"]
        service.retry("server")
        assert service.run().outcome == "done"
        assert len(service.snapshot().attempts_of("server")) == 2


def test_a_killed_engine_finds_its_server_again(tmp_path: Path) -> None:
    """The server is any one, by its command line."""
    command = '["{venv}/bin/transformers", "--port", "{port}", "--for", "{served_name}"]'
    tasks = runbook(tmp_path, "good").replace(
        "engine: transformers", f"engine: command\n      command: {command}"
    )
    with make(tmp_path, tasks) as service:
        assert service.run(only=["server"]).outcome == "done"
        assert states(service)["server"] == "serving"
        pid = server_pid(service)
    with Service.open(tmp_path) as other:
        assert other.view().engine is None
        assert server_pid(other) == pid
        assert other.run().outcome == "done"
        assert len(other.snapshot().attempts_of("server")) == 1


def run_elsewhere(folder: Path) -> str:
    """A run with a client of its own."""
    with Service.open(folder) as service:
        return service.run().outcome


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of this process look often."""
    monkeypatch.setattr(services, "LOOK_EVERY_S", 0.2)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path):
    """No server outlives its test."""
    yield
    if (tmp_path / ".runbook").exists():
        with Service.open(tmp_path) as service:
            if states(service).get("server") in ("starting", "serving", "draining"):
                service.stop("server")


def test_a_look_stops_no_server_that_is_late(tmp_path: Path) -> None:
    leave = threading.Event()

    def listen(event: object) -> None:
        if isinstance(event, TaskMoved) and event.state == "starting":
            leave.set()

    with make(tmp_path, runbook(tmp_path, "loading", within="1ms")) as service:
        service.run(stop_event=leave, listen=listen)
        assert states(service)["server"] == "starting"
        service.reconcile()
        assert states(service)["server"] == "starting"
        service.stop("server")
