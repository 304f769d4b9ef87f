"""What the verbs print: each thing once, in words, and only what is known."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from runbook import report
from runbook.cli.main import cli as group
from runbook.cli.main import leave
from runbook.plan import PlanError, load_text
from tests.support.workspaces import HEAD, make

if TYPE_CHECKING:
    from pathlib import Path

ASK = "Rent a machine with eight GPUs and bind it"
TASKS = f"""\
  work:
    title: Work
    phase: one
    estimate: 48h
    step: shell
    with: {{sh: "echo hello > ${{host.work}}/x"}}
    done_when: [{{file: {{path: "${{host.work}}/x", min_bytes: 1}}}}]
  rent: {{title: Rent, phase: one, needs: [work], step: manual, with: {{ask: "{ASK}"}}}}
"""


def said(folder: Path, *words: str) -> str:
    return CliRunner().invoke(group, ["-w", str(folder), *words]).output


@pytest.fixture(autouse=True)
def tester(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNBOOK_ACTOR", "tester")


def test_the_way_of_a_small_graph(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    cost = said(tmp_path, "plan", "--cost")
    assert "To come: 48 h, at an unknown price (`runbook" in cost
    assert "host rent box --usd-per-hour X" in cost
    assert "$0.00" not in cost
    assert "No task waits for a person." in said(tmp_path, "gate", "list")
    first, again = said(tmp_path, "run"), said(tmp_path, "run")
    assert first.count(ASK) == again.count(ASK) == 1, (first, again)
    assert "rent waits for a person (see above)" in first
    assert "gate approve rent" in first
    assert ASK in said(tmp_path, "gate", "list")
    status = said(tmp_path, "status")
    assert "\nOne\n" in status
    assert "\none\n" not in status
    told = said(tmp_path, "status", "work")
    assert "phase One" in told
    assert "bytes 6 B" in told
    assert "{" not in told
    only = said(tmp_path, "results", "work")
    assert "work" in only
    assert "Rent" not in only
    data = json.loads(said(tmp_path, "results", "work", "--json"))["data"]
    assert list(data["tasks"]) == ["work"]
    said(tmp_path, "skip", "rent", "--reason", "have one")
    assert "Done: every task is done or skipped (rent)." in said(tmp_path, "run")
    waited = said(tmp_path, "wait")
    assert waited == "Nothing is left to wait for: every task is done or skipped (rent).\n"


def test_facts_of_a_host_are_the_words_of_the_ui(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    told = said(tmp_path, "host", "probe", "box")
    assert told.startswith("machine   this machine")
    assert "\ncpu " in told
    assert "\nmemory " in told
    assert "{" not in told
    program = "import sys, runbook.tui.host_model, runbook.tui.inks, runbook.tui.naming\n"
    program += "assert 'textual' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_last_column_goes_on_below_itself(capsys: pytest.CaptureFixture[str]) -> None:
    report.table([("name", "word " * 30), ("other", "short")], width=40)
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("name   word")
    assert second.startswith("       word")
    assert max(map(len, (first, second))) <= 40
    assert last == "other  short"


def test_a_misspelt_key_is_one_problem() -> None:
    with pytest.raises(PlanError) as refused:
        load_text(HEAD + TASKS.replace("done_when", "done_wen"), path="runbook.yaml", params={})
    (problem,) = refused.value.problems
    assert "unknown key `done_wen`" in problem.message
    assert problem.suggestion == "done_when"


def test_the_same_bug_leaves_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails(what: str) -> None:
        raise LookupError(what)

    def other() -> None:
        raise LookupError("one")

    for broken in (lambda: fails("one"), lambda: fails("two"), other):
        with pytest.raises(LookupError) as caught:
            broken()
        assert leave(caught.value) == 70
    first, second = sorted(tmp_path.iterdir(), key=lambda path: "two" not in path.read_text())
    assert "LookupError: two" in first.read_text()
    assert "LookupError: one" in second.read_text()


def test_a_report_is_not_written_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = LookupError("one")
    leave(error)
    (written,) = tmp_path.iterdir()
    victim = written.with_name("victim")
    written.rename(victim)
    kept = victim.read_text()
    written.symlink_to(victim)
    victim.write_text("mine")
    leave(error)
    assert victim.read_text() == "mine"
    assert kept.strip() in capsys.readouterr().err
