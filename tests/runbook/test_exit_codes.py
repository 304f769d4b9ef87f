"""The exit codes that scripts branch on: each from a real verb as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runbook.cli.advance import OUTCOMES
from runbook.errors import Exit
from tests.support.workspaces import cli, make

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  made:
    title: Made
    phase: one
    step: shell
    with: {sh: "echo x > ${host.work}/made"}
    done_when: [{file: {path: "${host.work}/made"}}]
  bad: {title: Bad, phase: one, step: shell, with: {sh: "exit 1"}}
  ask: {title: Ask, phase: one, gate: {ask: "Go?"}, step: shell, with: {sh: "true"}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("codes")
    make(found, TASKS).close()
    return found


def test_codes(folder: Path, tmp_path: Path) -> None:
    table = [
        (["run", "made"], Exit.OK),
        (["status"], Exit.OK),
        (["retry", "made"], Exit.USAGE),
        (["run", "bad"], Exit.TASK_FAILED),
        (["run", "ask"], Exit.NEEDS_APPROVAL),
        (["progress", "--check"], Exit.OK),
        (["push", str(tmp_path / "s")], Exit.OK),
        (["pull", str(tmp_path / "s"), "--dir", str(tmp_path / "w")], Exit.NEEDS_APPROVAL),
        (["push", "s3://bucket/key", "--endpoint-url", "http://127.0.0.1:9"], Exit.UNKNOWN),
        (["claim", "bad"], Exit.OK),
        (["note", "x", "--expect-rev", "1"], Exit.CONFLICT),
        (["wait", "ask", "--timeout", "0"], Exit.OK),
        (["wait", "bad"], Exit.TASK_FAILED),
    ]
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_MAX_ATTEMPTS": "1"}
    found = [(words, cli(folder, *words, **keys)) for words, _ in table]
    codes = [(words, result.returncode) for words, result in found]
    assert codes == [(words, int(code)) for words, code in table]
    (folder / "work" / "made").unlink()
    assert cli(folder, "verify").returncode == Exit.CHECK_FAILED
    (folder / "PROGRESS.md").write_text("other")
    assert cli(folder, "progress", "--check").returncode == Exit.CHECK_FAILED
    assert cli(folder, "retry", "bad", RUNBOOK_ACTOR="other").returncode == Exit.CONFLICT


def test_what_could_not_be_looked_at_is_no_yes(tmp_path: Path) -> None:
    tasks = """\
  slow:
    title: Slow
    phase: one
    step: shell
    with: {sh: "mkdir -p ${host.work}"}
    done_when:
      - command: {argv: [sh, -c, "test ! -e $0/hangs || sleep 60", "${host.work}"], timeout_s: 1}
"""
    with make(tmp_path, tasks) as service:
        assert service.run().outcome == "done"
    (tmp_path / "work" / "hangs").touch()
    said = cli(tmp_path, "verify")
    assert said.returncode == Exit.UNKNOWN, said.stdout
    assert "not held: 0; unknown: 1." in said.stdout


def test_every_outcome_of_a_run_has_its_code() -> None:
    assert {
        "done": Exit.OK,
        "failed": Exit.TASK_FAILED,
        "blocked": Exit.TASK_FAILED,
        "attention": Exit.UNKNOWN,
        "held": Exit.CONFLICT,
        "gate": Exit.NEEDS_APPROVAL,
        "budget": Exit.OVER_BUDGET,
        "interrupted": Exit.STILL_RUNNING,
        **{name: OUTCOMES[name] for name in ("until",) if name in OUTCOMES},
    } == OUTCOMES
