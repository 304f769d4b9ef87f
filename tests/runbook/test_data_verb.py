"""What an audit found, brought from its host once, bounded, and kept for when the host is gone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from remote import RemoteError
from runbook.errors import RunbookError
from state import AttemptState, TaskState
from tests.support.workspaces import cli, make

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.service import Service

TASKS = """\
  audit:
    title: Audit
    phase: one
    step: audit
    with: {venv: /nowhere, completions: /c, report: /r}
  other:
    title: Other
    phase: one
    step: shell
    with: {argv: ["true"]}
"""
REPORT = {"rows": 3, "gates": [{"passed": False, "sentence": "one is [/] cut"}],
          "shares": {"truncated": 0.5}}  # fmt: skip
SAMPLES = {"samples": [{"id": "p-1", "flags": ["truncated"], "content": "so \x1b[31mon"}]}


def audited(folder: Path) -> tuple[Service, Path]:
    """A workspace whose audit has ended, and the folder where its files are."""
    service = make(folder / "w", TASKS)
    files = folder / "report"
    files.mkdir()
    (files / "report.json").write_text(json.dumps(REPORT))
    (files / "samples.json").write_text(json.dumps(SAMPLES))
    with service.store.write() as tx:
        attempt = tx.create_attempt("audit", host="box", epoch=None)
        tx.move_task("audit", TaskState.ACTIVE, expect={TaskState.READY})
        tx.move_task("audit", TaskState.VERIFYING, expect={TaskState.ACTIVE})
        tx.set_out("audit", {"path": str(files)})
        tx.move_task("audit", TaskState.DONE, expect={TaskState.VERIFYING})
    assert attempt.state is AttemptState.INTENDED
    return service, files


def test_it_is_brought_once_and_outlives_its_files(tmp_path: Path) -> None:
    service, files = audited(tmp_path)
    with service:
        found = service.audit("audit")
        assert found["report"] == REPORT
        assert found["samples"] == SAMPLES["samples"]
        for file in files.iterdir():
            file.unlink()
        assert service.audit("audit") == found
    shown = cli(tmp_path / "w", "audit", "audit")
    assert "FAIL one is [/] cut" in shown.stdout
    assert "truncated: 50.00% of rows" in shown.stdout
    samples = cli(tmp_path / "w", "audit", "audit", "--samples").stdout
    assert "p-1  truncated" in samples
    assert "\x1b" not in samples
    assert json.loads(cli(tmp_path / "w", "audit", "audit", "--json").stdout)["data"] == found


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        with pytest.raises(RunbookError, match="written no report yet"):
            service.audit("audit")
        with pytest.raises(RunbookError, match="is no audit"):
            service.audit("other")


def test_a_torn_or_missing_file_is_not_kept(tmp_path: Path) -> None:
    service, files = audited(tmp_path)
    with service:
        (files / "report.json").write_text('{"rows": ')
        with pytest.raises(RunbookError, match=r"report\.json is no JSON object"):
            service.audit("audit")
        (files / "report.json").unlink()
        with pytest.raises(RemoteError):
            service.audit("audit")
        (files / "report.json").write_text(json.dumps(REPORT))
        assert service.audit("audit")["report"] == REPORT


def test_events_are_told_and_narrowed(tmp_path: Path) -> None:
    service, _ = audited(tmp_path)
    service.close()
    told = cli(tmp_path / "w", "events", "--match", "task:audit kind:moved").stdout
    assert "active" in told
    assert "done" in told
    assert "other" not in told
    last = json.loads(cli(tmp_path / "w", "events", "--last", "1", "--json").stdout)
    assert len(last["data"]["events"]) == 1


def test_events_of_an_attempt_go_by_its_task_and_say_what_it_came_to(tmp_path: Path) -> None:
    tasks = "  hello: {title: Hello, phase: one, step: shell, with: {argv: [pwd]}}\n"
    with make(tmp_path / "w", tasks) as service:
        assert service.run().outcome == "done"
    told = cli(tmp_path / "w", "events", "--match", "kind:attempt.moved").stdout
    steps = [line.split() for line in told.splitlines()]
    assert {step[2] for step in steps} == {"hello"}
    assert [step[5].rstrip(",") for step in steps][-1] == "verified"
