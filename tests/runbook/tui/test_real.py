"""The screen on the real service, with real jobs on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from runbook.service import Service
from runbook.tui.app import RunbookApp
from runbook.tui.dialogs import AskScreen, NameScreen
from runbook.tui.screens.board import BoardScreen
from tests.support.tui_driver import driven, in_front
from tests.support.waiting import wait_until
from tests.support.workspaces import make

if TYPE_CHECKING:
    from pathlib import Path

GRAPH = """\
  first:
    title: Says [/] things
    phase: one
    step: shell
    with:
      sh: |
        printf '\\033[31mred [/] [0]\\033[0m\\n'
        echo '{"answer": 42}' > $RUNBOOK_OUT
  look:
    title: A person looks
    phase: one
    host: null
    needs: [first]
    step: manual
    with: {ask: "look at it"}
  long:
    title: Runs until stopped
    phase: one
    needs: [look]
    step: shell
    with: {sh: "echo started; sleep 600"}
"""


def state(app: RunbookApp, task: str) -> str:
    return str(app.view.snapshot.task(task).state)


async def test_a_graph_from_run_over_a_gate_to_a_stop(tmp_path: Path) -> None:
    make(tmp_path, GRAPH).close()
    app = RunbookApp(
        lambda: Service.open(tmp_path), crash_file=tmp_path / "crash.log", autorun=True
    )
    async with driven(app) as pilot:
        await wait_until(lambda: state(app, "look") == "gated", "the gate", seconds=60)
        await wait_until(lambda: not app.bridge.engine_runs, "the engine to wait")
        app.board.go_to("first")
        log = app.board.log_view
        await wait_until(lambda: log.file.line_count == 1, "its output")
        assert log.render_line(0).text.strip() == "red [/] [0]"
        app.board.go_to("look")
        await pilot.press("c")
        await in_front(app, AskScreen)
        await pilot.press(*"fine", "enter")
        await wait_until(lambda: state(app, "look") == "done", "the approval")
        await pilot.press("r")
        app.board.go_to("long")
        await wait_until(lambda: log.file.line_count == 1, "the long task's output", seconds=60)
        await wait_until(lambda: state(app, "long") == "active", "it in the view")
        await pilot.press("x")
        await in_front(app, NameScreen)
        await pilot.press(*"long", "enter")
        await wait_until(lambda: state(app, "long") == "gated", "the stop", seconds=60)
        await in_front(app, BoardScreen)
        await wait_until(lambda: not app.bridge.busy, "the answer")
        assert app.view.snapshot.task("first").out == {"answer": 42}
    app.service.close()
    assert not (tmp_path / "crash.log").exists()


def test_what_is_not_the_screen_loads_no_textual() -> None:
    code = (
        "import sys, json, runbook, runbook.service, runbook.views, runbook.cli.main;"
        "print(json.dumps([n for n in sys.modules if n.split('.')[0] in ('textual', 'plotext')]))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60
    )
    assert json.loads(answer.stdout) == []
