"""The operator's own command hears of what needs a person, and its failure stops nothing."""

from __future__ import annotations

import json
import shlex
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from runbook.engine.events import Info, Problem, RentalEnding, TaskMoved
from runbook.notify import MOST, WINDOW_S, Notifier
from runbook.secrets import Redactor
from runbook.service import ignore
from state.ids import stamp
from tests.support.workspaces import cli, make

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.engine.events import EngineEvent


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the last of many messages takes its time."""
    monkeypatch.setattr("runbook.notify.LEAVE_S", 60.0)


def appending(path: Path) -> list[str]:
    """A command that appends what it reads to a file."""
    return ["sh", "-c", 'cat >> "$0"', str(path)]


def moved(state: str, *, task: str = "train", reason: str = "") -> TaskMoved:
    return TaskMoved(task=task, state=state, reason=reason)


def test_what_needs_a_person_is_told_and_the_rest_is_not(tmp_path: Path) -> None:
    heard, seen = tmp_path / "heard", list[object]()
    with Notifier(appending(heard), "/ws", seen.append) as notify:
        for event in (
            moved("active"),
            moved("failed", reason="exit code 1"),
            moved("failed", reason="exit code 1"),  # at once again: not told twice
            moved("attention", task="copy", reason="the host was rebooted"),
            moved("gated", task="publish", reason="good enough?"),
            moved("gated", task="serve", reason="stopped by anna: too slow"),
            Problem(text="box ends in 30 min", hint="Save what you need."),
            moved("done"),
        ):
            notify(event)
        notify.send("finished", "", "every task is done")
    rows = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [(row["kind"], row["task"]) for row in rows] == [
        ("failed", "train"),
        ("lost", "copy"),
        ("gate", "publish"),
        ("task_stopped", "serve"),
        ("problem", None),
        ("finished", None),
    ]
    assert rows[0] == {
        "v": 1, "kind": "failed", "task": "train", "host": None, "reason": "exit code 1",
        "workspace": "/ws", "held_back": 0,
    }  # fmt: skip
    assert len(seen) == 8, "every event is passed on"


def test_a_command_that_fails_is_told_once(tmp_path: Path) -> None:
    told: list[EngineEvent] = []
    broken = ["sh", "-c", "echo no network >&2; exit 1"]
    with Notifier(broken, "/ws", told.append) as notify:
        notify.send("failed", "a", "")
        notify.send("failed", "b", "")
    assert told == [
        Info(text="the notify command failed (exit 1: no network); messages may be lost")
    ]


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    told: list[EngineEvent] = []
    with Notifier([str(tmp_path / "nothing")], "/ws", told.append) as notify:
        notify.send("failed", "a", "")
    assert len(told) == 1


def test_a_rental_that_ends_is_a_message_of_its_own(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    tasks = "  long: {title: Long, phase: one, step: shell, with: {sh: sleep 300}}\n"
    ends = datetime.now(UTC) + timedelta(minutes=10)
    with make(tmp_path, tasks) as service:
        service.rent("box", ends_at=stamp(ends))
        left = threading.Event()
        with Notifier(appending(heard), "/ws", ignore) as notify:

            def listen(event: EngineEvent) -> None:
                notify(event)
                if isinstance(event, RentalEnding):
                    left.set()

            service.run(stop_event=left, listen=listen)
        service.stop("long")
    (row,) = [json.loads(line) for line in heard.read_text().splitlines()]
    assert (row["kind"], row["host"], row["task"]) == ("rental", "box", None)
    assert "runbook host rent box --ends-at" in row["reason"]


def test_a_flood_is_held_back_and_counted_and_the_end_is_told(tmp_path: Path) -> None:
    heard, now = tmp_path / "heard", [0.0]
    with Notifier(appending(heard), "/ws", ignore, clock=lambda: now[0]) as notify:
        for number in range(MOST + 5):
            notify(moved("failed", task=f"t{number}"))
        notify.send("stopped", "", "failed: many")
        now[0] += WINDOW_S + 1
        notify(moved("failed", task="later"))
    rows = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [(row["kind"], row["held_back"]) for row in rows[-2:]] == [("stopped", 5), ("failed", 0)]
    assert len(rows) == MOST + 2


def test_a_secret_in_a_reason_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Redactor()
    known.add("TOKEN", "hunter2-hunter2")
    monkeypatch.setattr("runbook.notify.KNOWN", known)
    heard = tmp_path / "heard"
    with Notifier(appending(heard), "/ws", ignore) as notify:
        notify(moved("failed", reason="refused: hunter2-hunter2"))
    assert json.loads(heard.read_text())["reason"] == "refused: [TOKEN]"


def test_run_and_watch_tell_what_needs_a_person(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    tasks = (
        "  bad:\n    title: Bad\n    phase: one\n    step: shell\n"
        '    with: {sh: "echo secret words; exit 3"}\n'
    )
    make(tmp_path, tasks).close()
    ended = cli(tmp_path, "run", "--notify", shlex.join(appending(heard)))
    assert ended.returncode == 3, ended.stderr
    rows = [json.loads(line) for line in heard.read_text().splitlines()]
    assert [(row["kind"], row["task"]) for row in rows] == [("failed", "bad"), ("stopped", None)]
    assert rows[0]["workspace"] == str(tmp_path)
