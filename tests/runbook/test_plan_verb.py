"""`runbook plan` says beforehand what loading an edited file does, and writes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from runbook.cli.main import cli as cli_group
from runbook.diff import compare
from runbook.errors import RunbookError
from runbook.plan import load_text
from runbook.service import Service
from state import TaskState
from tests.support.workspaces import HEAD, cli, states

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.plan import Runbook

FIRST = """\
  first:
    title: First
    phase: one
    step: shell
    with: {argv: ["true"], env: {A: "1"}}
"""
SECOND = """\
  second:
    title: Second
    phase: one
    needs: [first]
    step: shell
    with: {argv: ["true"]}
"""
THIRD = """\
  third:
    title: Third
    phase: one
    needs: [second]
    step: shell
    with: {argv: ["true"]}
"""
TASKS = FIRST + SECOND + THIRD
CHANGED = TASKS.replace('env: {A: "1"}', 'env: {A: "2"}')
NEW = """\
  fourth:
    title: Fourth
    phase: one
    step: shell
    with: {argv: ["true"]}
"""
EDITS = {
    "nothing": TASKS,
    "changed": CHANGED,
    "new at the end": TASKS + NEW,
    "new at the start": NEW + TASKS,
    "removed": FIRST,
    "several": CHANGED.replace("Second", "2nd") + NEW,
    "cosmetic": TASKS.replace("title: First", "title: Primo"),
    "needs": TASKS.replace("needs: [second]", "needs: [first, second]"),
}


def book(tasks: str, head: str = HEAD) -> Runbook:
    return load_text(head + tasks, path="runbook.yaml", params={})


def made(folder: Path, tasks: str) -> Service:
    """A workspace without a machine: nothing is run here."""
    (folder / "runbook.yaml").write_text(HEAD + tasks)
    return Service.create(folder, book(tasks), actor="tester")


def finish(service: Service, *names: str) -> None:
    for name in names:
        with service.store.write() as tx:
            tx.move_task(name, TaskState.VERIFYING, expect={TaskState.READY})
            tx.move_task(name, TaskState.DONE, expect={TaskState.VERIFYING})


@pytest.mark.parametrize("edited", EDITS.values(), ids=EDITS)
def test_it_foretells_what_loading_does(tmp_path: Path, edited: str) -> None:
    with made(tmp_path, TASKS) as service:
        finish(service, "first", "second")
        told = compare(service.snapshot(), book(edited))
        report = service.load(book(edited))
        assert told.new == report.new
        assert tuple(row.task for row in told.changed) == report.changed
        assert tuple(row.task for row in told.removed) == report.removed
        stale = [name for name, state in states(service).items() if state == "stale"]
        assert list(told.stale) == stale
        assert compare(service.snapshot(), book(edited)).is_empty
        # Back again: what was removed comes back.
        told = compare(service.snapshot(), book(TASKS))
        report = service.load(book(TASKS))
        assert tuple(row.task for row in told.changed) == report.changed
        assert tuple(row.task for row in told.removed) == report.removed


def test_a_changed_done_task_turns_stale_and_what_is_below_is_named(tmp_path: Path) -> None:
    with made(tmp_path, TASKS) as service:
        finish(service, "first", "second")
        told = compare(service.snapshot(), book(CHANGED))
    assert told.stale == ("first",)
    ((change,),) = [row.fields for row in told.changed]
    assert (change.field, change.before, change.after) == ("with.env", {"A": "1"}, {"A": "2"})
    below = {row.task: row.effect for row in told.affected}
    assert below["second"].startswith("stays done")
    assert below["third"].startswith("waits")


def test_a_running_task_runs_on_and_ends_stale(tmp_path: Path) -> None:
    with made(tmp_path, TASKS) as service:
        with service.store.write() as tx:
            tx.move_task("first", TaskState.VERIFYING, expect={TaskState.READY})
        told = compare(service.snapshot(), book(CHANGED))
        assert told.changed[0].effect == "runs on as it began, and ends stale"
        assert told.stale == ()
        service.load(book(CHANGED))
        back = compare(service.snapshot(), book(TASKS)).changed[0]
        assert back.effect == "runs on: this is the definition that it began with"
        with service.store.write() as tx:
            tx.move_task("first", TaskState.DONE, expect={TaskState.VERIFYING})
        assert states(service)["first"] == "stale"


def test_cosmetic_edits_are_told_apart(tmp_path: Path) -> None:
    edited = TASKS.replace("title: First", "title: Primo\n    timeout: 5m")
    with made(tmp_path, TASKS) as service:
        finish(service, "first")
        told = compare(service.snapshot(), book(edited))
    assert (told.changed, told.stale, told.affected) == ((), (), ())
    assert sorted(change.field for change in told.cosmetic[0].fields) == ["timeout_s", "title"]


def test_order_and_head_are_told(tmp_path: Path) -> None:
    head = HEAD.replace("A small runbook", "Another title").replace("One", "Part one")
    with made(tmp_path, TASKS) as service:
        told = compare(service.snapshot(), book(THIRD + FIRST + SECOND, head))
    assert told.reordered
    assert [change.field for change in told.head] == ["title", "phases.one"]
    assert told.changed == told.cosmetic == ()


def test_it_writes_nothing(tmp_path: Path) -> None:
    with made(tmp_path, TASKS) as service:
        finish(service, "first")
        service.write_progress()
        revision = service.store.revision()
    same = cli(tmp_path, "plan")
    assert (same.returncode, "nothing would change" in same.stdout) == (0, True), same.stderr
    (tmp_path / "runbook.yaml").write_text(HEAD + CHANGED + NEW)
    progress = (tmp_path / "PROGRESS.md").read_bytes()
    told = cli(tmp_path, "plan")
    assert told.returncode == 0, told.stderr
    for said in (
        "+ fourth",
        "~ first (done; turns stale",
        'with.env: {"A": "1"}',
        f"{tmp_path} init",
    ):
        assert said in told.stdout
    answer = json.loads(cli(tmp_path, "plan", "--json").stdout)
    assert (answer["schema"], answer["verb"], answer["revision"]) == (1, "plan", revision)
    assert answer["data"]["stale"] == ["first"]
    assert not answer["data"]["same"]
    with made(tmp_path, CHANGED + NEW) as service:
        assert states(service)["first"] == "stale"  # only this load did that
    assert (tmp_path / "PROGRESS.md").read_bytes() != progress


def test_another_file_can_be_planned(tmp_path: Path) -> None:
    made(tmp_path, TASKS).close()
    other = tmp_path / "other.yaml"
    other.write_text(HEAD + FIRST)
    told = cli(tmp_path, "plan", str(other))
    assert told.returncode == 0, told.stderr
    assert "- third (blocked; kept as history)" in told.stdout
    assert "Put it in" in told.stdout


def test_wrong_files_are_told_with_their_problems(tmp_path: Path) -> None:
    made(tmp_path, TASKS).close()
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(HEAD + TASKS.replace("title: First", "titel: First"))
    told = cli(tmp_path, "plan", str(wrong))
    assert told.returncode == 2
    assert "wrong.yaml:9:5" in told.stderr
    assert "title" in told.stderr
    told = cli(tmp_path, "plan", str(wrong), "--json")
    assert told.returncode == 2
    assert json.loads(told.stdout)["data"]["problems"][0]["line"] == 9


@pytest.mark.parametrize(
    ("words", "said"),
    [(["none.yaml"], "cannot be read"), (["-p", "x"], "no `=` in it"), (["-p", "x=1"], "x")],
)
def test_wrong_input(tmp_path: Path, words: list[str], said: str) -> None:
    made(tmp_path, TASKS).close()
    error = CliRunner().invoke(cli_group, ["-w", str(tmp_path), "plan", *words]).exception
    assert isinstance(error, RunbookError)
    assert error.exit_code == 2
    assert said in error.message
