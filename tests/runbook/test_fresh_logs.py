"""`logs` while nobody advances the graph: the host itself is asked, and its silence is said."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

from click.testing import CliRunner

from remote import LocalTransport
from remote.ssh import SshTransport
from runbook.cli import logs
from runbook.engine import hosts
from runbook.engine.events import TaskMoved
from runbook.errors import Exit
from runbook.service import Service
from runbook.tui import logs as tui_logs
from runbook.tui.app import RunbookApp
from runbook.tui.screens.log import LogScreen
from runbook.tui.screens.task import TaskScreen
from state import HostBinding
from tests.support.deadline import wait_for
from tests.support.sshd import running_sshd
from tests.support.tui_driver import driven, in_front
from tests.support.waiting import wait_until
from tests.support.workspaces import cli, command, make, settle, states

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from remote import HostTarget, Transport
    from runbook.verbs.logs import Copied
    from tests.support.sshd import Sshd

TASKS = """\
  talks:
    title: Says one line for each that it is told
    phase: one
    step: shell
    with:
      sh: |
        mkdir -p ${host.work}; cd ${host.work}; n=0
        until test -e go; do
          if test -e say.$n; then echo said $n; n=$((n + 1)); touch spoke.$n; fi
          sleep 0.05
        done
"""


def leave_running(service: Service, work: Path) -> None:
    """A run that ends before its job has written anything."""
    leave = threading.Event()

    def listen(event: object) -> None:
        if isinstance(event, TaskMoved) and event.state == "active":
            leave.set()

    service.run(stop_event=leave, listen=listen)
    wait_for(work.exists, what="the job to start")


def tell(work: Path, number: int) -> None:
    (work / f"say.{number}").touch()
    wait_for((work / f"spoke.{number + 1}").exists, what="the job to speak")


def leave_running_far(
    service: Service, sshd: Sshd, far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same over SSH; it has said a line that was not copied."""

    def open_transport(target: HostTarget) -> Transport:
        if target.kind == "local":
            return LocalTransport()
        return SshTransport(target, config=sshd.client_config)

    monkeypatch.setattr(hosts, "open_transport", open_transport)
    box = HostBinding(
        role="box", kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port,
        root=str(far / "root"), work=str(far / "work"), host_key=sshd.host_key,
    )  # fmt: skip
    service.bind("box", box)
    leave_running(service, far / "work")
    tell(far / "work", 0)


def test_what_was_written_while_nobody_looked_is_shown_and_followed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with make(tmp_path, TASKS) as service:
        leave_running(service, work)
        tell(work, 0)
        assert cli(tmp_path, "logs", "talks").stdout == "said 0\n"
        tell(work, 1)
        assert cli(tmp_path, "logs", "talks").stdout == "said 0\nsaid 1\n", "an older copy grows"
        before = service.store.revision()
        follow = subprocess.Popen(
            command(tmp_path, "logs", "talks", "-f"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert follow.stdout is not None
        assert follow.stdout.readline() == "said 0\n"
        tell(work, 2)
        assert [follow.stdout.readline() for _ in range(2)] == ["said 1\n", "said 2\n"]
        (work / "go").touch()
        _, errors = follow.communicate(timeout=60)
        assert follow.returncode == 0
        assert "its job is over (exited) and nobody recorded it" in errors
        assert service.store.revision() == before, "looking records nothing"
        service.run()
        assert states(service) == {"talks": "done"}


def test_an_engine_that_leaves_while_its_copy_is_read_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, tail = tmp_path / "work", logs._tail
    with make(tmp_path, TASKS) as service:
        leave_running(service, work)
        tell(work, 0)
        service.copy_logs("talks")
        lease = service.store.acquire("engine", "whoever copies")

        def read(data: bytes, lines: int) -> str:
            tell(work, 1)
            (work / "go").touch()
            settle(tmp_path)
            service.store.release(lease)
            return tail(data, lines)

        monkeypatch.setattr(logs, "_tail", read)
        shown = CliRunner().invoke(logs.logs_command, ["talks", "-f"], obj=tmp_path)
        assert (shown.exit_code, shown.stdout) == (0, "said 0\nsaid 1\n"), shown.stderr


async def test_the_log_on_the_screen_grows_while_nobody_advances_the_graph(tmp_path: Path) -> None:
    work = tmp_path / "work"
    with make(tmp_path, TASKS) as service:
        leave_running(service, work)
        tell(work, 0)
        app = RunbookApp(lambda: Service.open(tmp_path), crash_file=tmp_path / "crash.log")
        async with driven(app) as pilot:
            app.board.go_to("talks")
            small = app.board.log_view
            await wait_until(lambda: small.file.line_count == 1, "a line", seconds=60)
            await pilot.press("3")
            await in_front(app, LogScreen)
            screen = app.screen
            assert isinstance(screen, LogScreen)
            log = screen.log_view
            tell(work, 1)
            await wait_until(lambda: log.file.line_count == 2, "more", seconds=60)
        (work / "go").touch()
        service.run()
        assert states(service) == {"talks": "done"}


async def test_the_board_fetches_the_log_and_a_silent_host_holds_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, far = tmp_path / "ws", tmp_path / "far"
    monkeypatch.setattr(tui_logs, "FETCH_S", 60.0)
    monkeypatch.setattr(tui_logs, "FETCH_AGAIN_S", 0.2)
    with running_sshd(tmp_path / "sshd") as sshd, make(folder, TASKS) as service:
        leave_running_far(service, sshd, far, monkeypatch)
        asked = threading.Event()

        def copy_logs(self: Service, task: str, *, within_s: float) -> Copied:
            asked.set()
            return copied(self, task, within_s=within_s)

        copied = Service.copy_logs
        monkeypatch.setattr(Service, "copy_logs", copy_logs)
        assert sshd.process is not None
        os.kill(sshd.process.pid, signal.SIGSTOP)  # connections are taken, and nobody speaks
        app = RunbookApp(lambda: Service.open(folder), crash_file=tmp_path / "crash.log")
        async with driven(app) as pilot:
            app.board.go_to("talks")
            await wait_until(asked.is_set, "the host to be asked", seconds=60)
            await pilot.press("2")
            await in_front(app, TaskScreen)
            await pilot.press("1")
            await wait_until(lambda: app.screen is app.board, "the board")
            log = app.board.log_view
            assert log.file.line_count == 0, "the host has not answered, and the keys have"
            os.kill(sshd.process.pid, signal.SIGCONT)
            await wait_until(lambda: log.file.line_count == 1, "the line", seconds=60)
            sshd.stop()
            await wait_until(
                lambda: "an old copy: " in str(log.border_title), "its age", seconds=60
            )
        sshd.start()
        (far / "work" / "go").touch()
        service.run()
        assert states(service) == {"talks": "done"}


def test_a_silent_host_is_said_with_the_age_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, far = tmp_path / "ws", tmp_path / "far"
    with running_sshd(tmp_path / "sshd") as sshd, make(folder, TASKS) as service:
        leave_running_far(service, sshd, far, monkeypatch)

        def shown() -> tuple[int, str, str]:
            ended = CliRunner().invoke(
                logs.logs_command, ["talks"], obj=folder, catch_exceptions=False
            )
            return ended.exit_code, ended.stdout, ended.stderr

        sshd.stop()
        code, out, errors = shown()
        assert code == Exit.UNKNOWN
        assert out == ""
        assert "Nothing of it was copied yet; nobody copies it" in errors
        sshd.start()
        assert shown()[:2] == (0, "said 0\n")
        sshd.stop()
        code, out, errors = shown()
        assert (code, out) == (0, "said 0\n")
        assert re.search(r"The copy is from \d\d:\d\d:\d\d; nobody copies it", errors)
        assert "`runbook run` goes on" in " ".join(errors.split())
        sshd.start()
        (far / "work" / "go").touch()
        service.run()
        assert states(service) == {"talks": "done"}


def test_a_copy_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        leave_running(service, tmp_path / "work")
        tell(tmp_path / "work", 0)
        shutil.rmtree(service.workspace.private / "logs", ignore_errors=True)
        (service.workspace.private / "logs").touch()
        said = cli(tmp_path, "logs", "talks")
        assert "Traceback" not in said.stderr
        assert "File exists" in said.stderr
        assert said.returncode == Exit.UNKNOWN
        as_json = cli(tmp_path, "logs", "talks", "--json")
        assert "File exists" in json.loads(as_json.stdout)["data"]["problem"]
        assert as_json.returncode == Exit.UNKNOWN
        (service.workspace.private / "logs").unlink()
        service.stop("talks")
