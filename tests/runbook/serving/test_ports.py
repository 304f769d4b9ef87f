"""Two that want one port: two operators, a stranger who has it, one who takes it meanwhile."""

from __future__ import annotations

import socket
import subprocess
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from runbook.engine import runner, services
from runbook.service import Service
from tests.support import fake_sglang
from tests.support.deadline import wait_for
from tests.support.failing_servers import Failing, told, workspace
from tests.support.ports import free_ports
from tests.support.workspaces import states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of this process look often."""
    monkeypatch.setattr(runner, "POLL_S", (0.3, 0.8))
    monkeypatch.setattr(services, "LOOK_EVERY_S", 0.2)


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


@contextmanager
def one_server(folder: Path, port: int, **more: object) -> Iterator[Service]:
    """A workspace with a server on this port."""
    fake_sglang.install(folder / "venv")
    base = {"venv": str(folder / "venv"), "model": "/m", "served_name": "m", "device": "cpu",
            "port": port, "grace": 5, **more}  # fmt: skip
    with workspace(folder, [Failing(name="serve")], base) as service:
        yield service


@contextmanager
def listener(port: int) -> Iterator[None]:
    """A stranger who hangs up at once: one who says nothing is listened to for half a minute."""

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                stranger.accept()[0].close()

    with socket.create_server(("127.0.0.1", port)) as stranger:
        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            yield
        finally:
            stranger.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def engine(folder: Path) -> Iterator[None]:
    """An engine at work, with a client of its own, until it has nothing more to do."""

    def run() -> None:
        with Service.open(folder) as own:
            own.run(stop_event=leave)

    leave = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join(60)
    assert not thread.is_alive()


def soon(true: Callable[[], bool], what: str) -> None:
    """On a machine that is busy with other work."""
    wait_for(true, limit_s=60, what=what)


def test_the_second_operator_is_refused_while_the_first_ones_server_still_loads(
    tmp_path: Path, port: int
) -> None:
    """Nothing listens yet: only the claim on the host tells."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    with one_server(mine, port) as first, one_server(theirs, port) as second:
        fake_sglang.tell(mine / "venv", port, silent=True)
        with engine(mine):
            soon(lambda: states(first)["serve"] == "starting", what="the first to load")
            own = first.snapshot().latest_attempt("serve")
            assert own is not None
            soon(lambda: _running(first), what="its process")
            assert second.run().outcome == "attention"
            reason = second.snapshot().task("serve").reason
            assert f"port:{port} belongs to attempt {own.id} (its supervisor lives)" in reason
            fake_sglang.tell(mine / "venv", port)
            soon(lambda: states(first)["serve"] == "serving", what="the first to serve")
        assert fake_sglang.requests(theirs / "venv", port) == []

        first.stop("serve")
        second.supersede("serve", reason="theirs has ended")
        assert second.run(only=["serve"]).outcome == "done"
        assert states(second)["serve"] == "serving"


def _running(service: Service) -> bool:
    attempt = service.snapshot().latest_attempt("serve")
    return attempt is not None and attempt.state.value == "running"


def test_a_strangers_listener_is_seen_before_anything_is_started(tmp_path: Path, port: int) -> None:
    stranger = subprocess.Popen(
        ["python3", "-c", (f"import socket, time; s = socket.create_server(('127.0.0.1', {port}))\n"
                          "print(flush=True); time.sleep(600)")],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        with one_server(tmp_path, port) as service:
            result = service.run()
            assert f"port {port} is taken by python3 (pid {stranger.pid})" in result.reason
            assert service.snapshot().attempts_of("serve") == ()
            assert states(service)["serve"] == "ready"
            stranger.kill()
            stranger.wait()
            assert service.run(only=["serve"]).outcome == "done"
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()


def test_a_port_that_is_taken_while_the_model_loads(tmp_path: Path, port: int) -> None:
    with one_server(tmp_path, port) as service:
        fake_sglang.tell(tmp_path / "venv", port, silent=True)
        with engine(tmp_path):
            soon(lambda: _running(service), what="it to load")
            with listener(port):
                fake_sglang.tell(tmp_path / "venv", port)
                soon(lambda: states(service)["serve"] == "failed", what="its end")
        found = told(service, "serve")
        assert (found.kind, found.final) == ("port", False)
        assert "its port is taken. Next: free the port or give it another" in found.reason
        service.retry("serve")
        assert service.run(only=["serve"]).outcome == "done"


def test_one_that_could_not_bind_and_lives_on_is_not_waited_for(tmp_path: Path, port: int) -> None:
    """SGLang asks the stranger on its port for minutes whether it is ready."""
    said = (f"ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', {port}):"
            " address already in use")  # fmt: skip
    with one_server(tmp_path, port) as service:
        fake_sglang.tell(tmp_path / "venv", port, says=[said])
        assert service.run().outcome == "failed"
        reason = service.snapshot().task("serve").reason
        assert reason.startswith("it will never serve; its port is taken. Next: ")
        assert told(service, "serve").cls == "exit"


def test_another_server_that_answers_on_the_port_is_not_taken_for_ours(
    tmp_path: Path, port: int
) -> None:
    """It is healthy, has the same name and generates; ours still loads."""
    fake_sglang.install(tmp_path / "other")
    with one_server(tmp_path, port, ready_within=5) as service:
        fake_sglang.tell(tmp_path / "venv", port, silent=True)
        words = ["serve", "--port", str(port), "--served-model-name", "m"]
        fake_sglang.tell(tmp_path / "other", port, silent=True)  # it comes, but not so soon
        other = subprocess.Popen(
            [tmp_path / "other/bin/sglang", *words, "--weight-version", "another"],
            stderr=subprocess.DEVNULL,
        )
        with engine(tmp_path):
            try:
                soon(lambda: _running(service), what="ours to load")
                fake_sglang.tell(tmp_path / "other", port)
                soon(lambda: states(service)["serve"] == "attention", what="our patience to end")
            finally:
                other.kill()
                other.wait()
        asked = fake_sglang.requests(tmp_path / "other", port)
        assert {"GET /health", "GET /model_info"} <= set(asked)
        assert "POST /v1/chat/completions" not in asked
        # Ours is gone; that its port is not free is said, with who has it.
        assert f"pid {other.pid} (sglang) holding port {port}" in told(service, "serve").reason
