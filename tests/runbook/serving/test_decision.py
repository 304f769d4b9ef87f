"""What a task found out, such as the best flags, is kept as a decision with its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.workspaces import make

if TYPE_CHECKING:
    from pathlib import Path

TASK = """\
  bench:
    title: Bench
    phase: one
    step: shell
    with: {{sh: "printf %s '{out}' > $RUNBOOK_OUT"}}
"""


def test_a_decision_of_a_task_is_kept_once(tmp_path: Path) -> None:
    task = TASK.format(out='{"decision": "run as mtp: 812 tok/s", "tok_s": 812}')
    with make(tmp_path, task.replace('"decision": "', '\\"decision\\": \\"')
              .replace('tok/s", "tok_s"', 'tok/s\\", \\"tok_s\\"')) as service:  # fmt: skip
        assert service.run().outcome == "done"
        notes = service.snapshot().notes
        assert [(n.task, n.text, n.decision) for n in notes] == [
            ("bench", "run as mtp: 812 tok/s", True)
        ]
        assert "run as mtp: 812 tok/s" in service.brief()
        service.verify(["bench"])
        assert service.snapshot().notes == notes
