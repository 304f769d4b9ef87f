"""While a task runs and says nothing, `run` says that it does, and what it wrote last."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from runbook.cli.follow import Follow
from runbook.cli.heartbeat import Heartbeat
from runbook.live import read_live
from tests.support.deadline import wait_for
from tests.support.workspaces import make

if TYPE_CHECKING:
    import pytest

    from state import Attempt

TASKS = """\
  plain:
    title: Plain
    phase: one
    step: shell
    with: {sh: "echo loading weights; sleep 300"}
  counted:
    title: Counted
    phase: one
    step: shell
    with:
      sh: >-
        for i in 1 2 3 4; do
        echo '{"v": 1, "kind": "step", "done": '$i', "total": 4000, "unit": "rows", "t": '$i'}'
        >> "$RUNBOOK_PROGRESS"; sleep 0.2; done; sleep 300
"""


def test_it_says_what_runs_and_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with make(tmp_path, TASKS) as service:
        stop = threading.Event()
        engine = threading.Thread(target=service.run, kwargs={"stop_event": stop})
        follow = Follow()
        beats = Heartbeat(tmp_path, follow, every_s=0.0)
        engine.start()
        try:
            wait_for(lambda: _done(tmp_path) == 4, limit_s=60, what="its progress here")
            wait_for(
                lambda: "loading" in _told(beats, capsys),
                limit_s=60, what="its last line",
            )  # fmt: skip
            said = _told(beats, capsys)
        finally:
            stop.set()
            engine.join()
            for task in ("plain", "counted"):
                service.stop(task)
    plain, counted = (
        next(line for line in said.splitlines() if f"  {name} " in line)
        for name in ("plain", "counted")
    )
    assert "active for " in plain
    assert ": loading weights (" in plain
    assert plain.endswith(" ago)")
    assert "4/4000 rows" in counted


def test_what_was_told_of_is_not_told_again_so_soon() -> None:
    follow = Follow()
    follow.still("a", "active")
    assert follow.quiet_since("a") < follow.quiet_since("b")


def test_the_time_that_is_left_is_taken_from_the_pace_since_it_looks() -> None:
    beats, attempt = Heartbeat(Path(), Follow()), cast("Attempt", SimpleNamespace(id="a1"))
    assert beats._pace(attempt, {"t": 100.0, "done": 50, "total": 100}) == ": 50/100"
    assert beats._pace(attempt, {"t": 120.0, "done": 60, "total": 100}) == (
        ": 60/100  about 80 s left"
    )
    assert beats._pace(attempt, {"t": 130.0, "done": 70, "total": float("inf")}) == ": 70/inf"
    assert beats._pace(attempt, {"t": 130.0, "done": float("nan"), "total": 100}) == ": nan/100"


def _done(folder: Path) -> object:
    from runbook.workspace import Workspace

    live = read_live(Workspace(folder)).get("counted")
    return (live.progress or {}).get("done") if live else None


def _told(beats: Heartbeat, capsys: pytest.CaptureFixture[str]) -> str:
    beats.beat()
    return capsys.readouterr().out
