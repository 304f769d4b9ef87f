"""Done work that somebody wants made again: it alone, or with all that was made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runbook.errors import RunbookError
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  make:
    title: Make
    phase: one
    step: shell
    with: {sh: "echo x >> ${host.work}/made"}
  count:
    title: Count
    phase: one
    needs: [make]
    step: shell
    with: {sh: "wc -l < ${host.work}/made >> ${host.work}/counted"}
  tell:
    title: Tell
    phase: one
    needs: [count]
    step: shell
    with: {sh: "cat ${host.work}/counted"}
  other:
    title: Other
    phase: one
    step: shell
    with: {sh: "true"}
"""


def test_a_done_task_is_made_again_where_somebody_says_why(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        service.run()
        with pytest.raises(RunbookError, match="needs a reason"):
            service.retry("make")
        service.retry("make", reason="another file")
        assert states(service) == {
            "make": "ready", "count": "done", "tell": "done", "other": "done",
        }  # fmt: skip
        service.run()
        attempts = {t: len(service.snapshot().attempts_of(t)) for t in states(service)}
        assert attempts == {"make": 2, "count": 1, "tell": 1, "other": 1}


def test_with_all_that_was_made_of_it(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        service.run()
        service.retry("make", reason="another file", below=True)
        service.run()
        attempts = {t: len(service.snapshot().attempts_of(t)) for t in states(service)}
        assert attempts == {"make": 2, "count": 2, "tell": 2, "other": 1}
        assert set(states(service).values()) == {"done"}
        (counted,) = tmp_path.rglob("counted")
        assert counted.read_text(encoding="utf-8").split() == ["1", "2"]  # in their order
