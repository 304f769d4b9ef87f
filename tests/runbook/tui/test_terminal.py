"""In a real terminal: tmux at two sizes, resized, without colour, killed, crashed, two at once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runbook.service import Service
from tests.support.deadline import wait_for
from tests.support.tmux import Tmux
from tests.support.workspaces import make

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
GRAPH = """\
  look:
    title: A person looks
    phase: one
    host: null
    step: manual
    with: {ask: "look at it"}
  second:
    title: The second task
    phase: one
    needs: [look]
    step: shell
    with: {sh: "echo second"}
"""


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    server = Tmux(tmp_path)
    yield server
    server.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "w"
    make(folder, GRAPH).close()
    (folder / ".runbook" / "tui.json").write_text('{"welcomed": true}')
    return folder


def command(workspace: Path, *more: str, code: str = "", **environment: str) -> list[str]:
    """The interface, then how it ended, then a shell that waits."""
    settings = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT), **environment}
    said = " ".join(f"{name}='{value}'" for name, value in settings.items())
    program = code or f"-m runbook -w {workspace} tui {' '.join(more)}"
    return [
        "sh",
        "-c",
        f"env -u COLUMNS -u LINES {said} {sys.executable} {program}; echo ended $?; exec sleep 600",
    ]


def test_a_session_from_start_to_end(tmux: Tmux, workspace: Path) -> None:
    tmux.start("a", command(workspace), 80, 24)
    tmux.wait_for("a", "The second task")
    small = tmux.wait_for("a", "? Help")  # the lowest line, which comes last
    assert len(small.splitlines()) == 24
    tmux("resize-window", "-t", "a", "-x", "140", "-y", "45")
    tmux.wait_for("a", "8 Timeline")
    tmux.keys("a", "8")
    tmux.wait_for("a", "Events")
    tmux.keys("a", "Escape")  # and a pause: with a key right behind it, it would be alt
    tmux.wait_for("a", "Next [.] Run")
    tmux.keys("a", "/")
    tmux.wait_for("a", "filter: a name")
    tmux.keys("a", "second", "Enter")
    tmux.wait_for("a", "Tasks matching second")
    tmux.keys("a", "q")
    tmux.wait_for("a", "ended 0")
    assert "Nothing runs" in tmux.screen("a")
    modes = tmux(
        "display-message", "-p", "-t", "a", "#{mouse_any_flag} #{alternate_on} #{cursor_flag}"
    )
    assert modes.split() == ["0", "0", "1"]


def test_two_screens_and_a_kill(tmux: Tmux, workspace: Path) -> None:
    for name in ("a", "b"):
        tmux.start(name, command(workspace, "--run"), 100, 30)
        tmux.wait_for(name, "The second task")
    for name in ("a", "b"):  # `b` acts on what it shows, and looks only now and then
        tmux.wait_for(name, "gated")
    pid = int(tmux("display-message", "-p", "-t", "a", "#{pane_pid}"))
    child = wait_for(
        lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), what="the screen"
    )
    os.kill(int(child[0]), signal.SIGKILL)
    tmux.wait_for("a", "ended 137")
    tmux.keys("b", "g", "c")
    tmux.wait_for("b", "Approve look?")
    tmux.keys("b", "Enter")

    def state() -> bool:
        with Service.open(workspace) as service:
            return str(service.snapshot().task("look").state) == "done"

    wait_for(state, what="the yes of the screen that lives")


def test_without_colour_nothing_is_lost(tmux: Tmux, workspace: Path) -> None:
    tmux.start("a", command(workspace, NO_COLOR="1", RUNBOOK_ASCII="1"), 80, 24)
    tmux.wait_for("a", "The second task")
    plain = tmux.wait_for("a", "? Help")  # the lowest line, which comes last
    assert "ready" in plain or "gated" in plain
    assert "blocked" in plain
    assert plain.isascii()
    for number in "2345678":
        tmux.keys("a", number)
        tmux.keys("a", "j")
    tmux.keys("a", "9")
    assert tmux.wait_for("a", "Brief at revision").isascii()
    painted = tmux.screen("a", "-e")
    colours = [
        part.split("m")[0]
        for part in painted.split("\x1b[38;2;")[1:] + painted.split("\x1b[48;2;")[1:]
    ]
    assert all(len(set(colour.split(";")[:3])) == 1 for colour in colours), "only greys"


def test_a_crash_leaves_a_report_and_a_sane_terminal(
    tmux: Tmux, workspace: Path, tmp_path: Path
) -> None:
    script = tmp_path / "crash.py"
    script.write_text(
        "from pathlib import Path\n"
        "from runbook.tui import app, start\n"
        "def draw(self):\n    raise ZeroDivisionError('[/] on purpose')\n"
        "app.RunbookApp.open_help = draw\n"
        f"raise SystemExit(start.run_tui(Path({str(workspace)!r})))\n"
    )
    tmux.start("a", command(workspace, code=str(script)), 80, 24)
    tmux.wait_for("a", "The second task")
    tmux.keys("a", "?")
    shown = tmux.wait_for("a", "ended 1")
    assert "[/] on purpose" in shown
    report = (workspace / ".runbook" / "crash.log").read_text()
    assert "ZeroDivisionError" in report
    modes = tmux(
        "display-message", "-p", "-t", "a", "#{mouse_any_flag} #{alternate_on} #{cursor_flag}"
    )
    assert modes.split() == ["0", "0", "1"]
