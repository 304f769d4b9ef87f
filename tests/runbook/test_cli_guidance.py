"""What a newcomer is told: whole commands, one question at a time, no silence."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from runbook.cli.main import cli as group
from tests.support.workspaces import HEAD, make, states

if TYPE_CHECKING:
    from pathlib import Path

ASKS = """\
  quiet: {title: Quiet, phase: one, step: shell, with: {sh: "true"}}
  dear:
    title: Dear
    phase: one
    needs: [quiet]
    gate: {ask: "Is it worth it?"}
    budget: {hours: 1}
    estimate: 2h
    step: shell
    with: {sh: "true"}
"""


def say(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(group, ["-w", str(folder), *words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with make(tmp_path / "ws", ASKS) as service:
        service.run(only=["quiet"])
    return tmp_path / "ws"


@pytest.mark.parametrize("verb", ["status", "next", "brief"])
def test_the_next_command_works_from_where_one_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(folder.parent)
    assert "runbook -w ws run" in CliRunner().invoke(group, ["-w", "ws", verb]).output
    monkeypatch.chdir(folder)
    inside = CliRunner().invoke(group, [verb]).output
    assert "runbook run" in inside
    assert "-w" not in inside
    monkeypatch.chdir("/")
    monkeypatch.setenv("RUNBOOK_WORKSPACE", str(folder))
    assert "runbook run" in CliRunner().invoke(group, [verb]).output


def test_the_workspace_may_stand_before_and_after_the_verb(folder: Path) -> None:
    for words in (["host", "list", "-w"], ["host", "-w"], ["status", "-w"]):
        tail = ["list"] if words == ["host", "-w"] else []
        result = CliRunner().invoke(group, [*words, str(folder), *tail])
        assert result.exit_code == 0, result.output


def test_a_silent_task_is_told(folder: Path) -> None:
    assert "`quiet` has written nothing; it is done" in say(folder, "logs", "quiet").stderr
    assert "written nothing; it is ready" in say(folder, "logs", "dear").stderr


def test_a_dry_run_tells_what_would_be_asked(folder: Path) -> None:
    told = say(folder, "run", "--dry-run").stdout
    assert 'would start dear on box, once a person says yes to "Is it worth it?" and to' in told
    assert "this (over budget: it needs about 2 h (stated); its budget is 1 h" in told


def test_gate_and_budget_are_one_question_and_one_yes(folder: Path) -> None:
    with make(folder, ASKS) as service:
        asked = service.run()
        assert (asked.outcome, states(service)["dear"]) == ("budget", "gated")
        assert "Is it worth it?" in asked.reason
        service.approve("dear", "it is")
        assert service.run().outcome == "done"
        about = [yes.about for yes in service.snapshot().approvals]
    assert about == ["budget", "gate"]


def test_plan_tells_which_needs_come_and_go(folder: Path) -> None:
    other = folder / "other.yaml"
    middle = '  middle: {title: M, phase: one, step: shell, with: {sh: "true"}}\n'
    other.write_text(HEAD + middle + ASKS.replace("needs: [quiet]", "needs: [middle]"))
    assert "needs: -quiet, +middle" in say(folder, "plan", str(other)).stdout


def test_a_long_text_is_cut_where_it_differs(folder: Path) -> None:
    other = folder / "other.yaml"
    long = "x" * 200
    other.write_text(HEAD + ASKS.replace("Is it worth it?", f"{long} one?"))
    (folder / "runbook.yaml").write_text(HEAD + ASKS.replace("Is it worth it?", f"{long} two?"))
    assert say(folder, "init", "--dir", str(folder)).exit_code == 0
    (line,) = re.findall(r".*gate.*", say(folder, "plan", str(other)).stdout)
    before, _, after = line.partition(" -> ")
    assert "two?" in before
    assert "one?" in after


def test_a_filter_that_fits_nothing_says_what_it_takes(folder: Path) -> None:
    result = say(folder, "events", "--match", "taks:quiet")
    assert "No event fits `taks:quiet`" in result.stderr
    assert "task:" in result.stderr


def test_a_bundled_runbook_is_validated_by_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "valid" in say(folder, "validate", "demo").stdout
    (tmp_path / "demo").mkdir()  # its workspace, beside which people stand
    assert "valid" in say(folder, "validate", "demo").stdout
    result = say(folder, "validate", "dmeo")
    assert result.exception is not None
    assert "dmeo" in str(result.exception)


@pytest.mark.parametrize(("typed", "meant"), [("bogus", ""), ("lgos", "logs"), ("aprove", "")])
def test_only_a_near_word_is_suggested(typed: str, meant: str) -> None:
    said = CliRunner().invoke(group, [typed]).output
    assert (f"Did you mean `{meant}`" in said) if meant else ("Did you mean" not in said)


def test_costs_of_which_nothing_is_known_are_no_table(tmp_path: Path) -> None:
    make(tmp_path / "ws", ASKS.replace("    estimate: 2h\n", "")).close()
    assert "Nothing is known of 2 tasks yet." in say(tmp_path / "ws", "plan", "--cost").stdout


def test_the_doctor_tells_of_a_changed_document(folder: Path) -> None:
    (folder / "plan.md").write_text("one")
    with make(folder, ASKS) as service:
        service.add_document(str(folder / "plan.md"))
    (folder / "plan.md").write_text("two")
    told = json.loads(say(folder, "doctor", "--no-hosts", "--json").stdout)["data"]
    (found,) = [row for row in told["findings"] if row["part"] == "documents"]
    assert (found["level"], told["healthy"]) == ("note", True)
    assert shlex.split(found["next"].split("`")[1])[:3] == ["runbook", "doc", "add"]
