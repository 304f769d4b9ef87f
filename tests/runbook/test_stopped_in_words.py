"""What a person stopped is told as stopped, by each verb as on the screen; JSON has its state."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from runbook.mcp.answers import waited
from runbook.reader import Reader
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

TASKS = """\
  long:
    title: Until it is stopped
    phase: one
    step: shell
    with: {sh: "sleep 600"}
  after:
    title: After it
    phase: one
    needs: [long]
    step: shell
    with: {sh: "true"}
"""


def edit(folder: Path) -> None:
    """What the task does is defined otherwise."""
    file = folder / "runbook.yaml"
    file.write_text(file.read_text().replace("sleep 600", "sleep 601"))


def test_stopped_is_the_word(
    tmp_path: Path,
    say: Callable[..., tuple[int, str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with make(tmp_path, TASKS) as service:
        left = threading.Event()
        service.run(
            stop_event=left,
            listen=lambda event: left.set() if getattr(event, "state", "") == "active" else None,
        )
        capsys.readouterr()
        assert "⊘ stopped: stopped by " in say(tmp_path, "stop", "long")[1]
        assert states(service)["long"] == "gated"
    edit(tmp_path)
    for words, told in (
        (("status",), "long   ⊘ stopped "), (("status", "long"), "long  ⊘ stopped "),
        (("status", "after"), "needs long (stopped)"), (("results",), "⊘ stopped"),
        (("wait", "long"), "long: stopped"),
        (("gate", "list"), "long  ⊘ stopped  stopped by "),
        (("gate", "list"), "`runbook -w "),
        (("gate", "list"), "retry TASK` runs again what was stopped"),
        (("brief",), "1 blocked, 1 stopped."), (("brief",), "`long` stopped by "),
        (("brief", "--for", "long"), "- stopped (`stopped by "),
        (("events", "--match", "kind:task.moved stopped,"), "stopped, stopped by "),
        (("run", "--dry-run"), "start long on box, once `runbook retry long` says so (stopped by "),
        (("plan",), "~ long (stopped; stays stopped; its next attempt "),
        (("stop", "long"), "Nothing of `long` runs: it is stopped."),
        (("supersede", "long", "--reason", "gone"), "Cannot supersede `long`: it is stopped ("),
        (("gate", "approve", "long"), "Cannot approve `long`: it is stopped ("),
        (("gate", "approve", "long"), "retry long` runs it again"),
    ):  # fmt: skip
        _, out, errors = say(tmp_path, *words)
        assert told in out + errors, words
        assert "◆" not in out
        assert "gated" not in (out + errors).replace("works when it is", ""), words
        assert "gate approve" not in out, words
    assert ": `stopped by " not in say(tmp_path, "brief")[1], "it is told once"
    written = (tmp_path / "PROGRESS.md").read_text()
    assert "Until it is stopped: **stopped**, on `box`" in written
    assert "| **all** |  |  |  |  | 1 | 1 |  | 2 |" in written, "it needs a look"
    with Reader.open(tmp_path) as reader:
        assert waited(reader.view(), "long", ended=True) == "long is stopped"
    _, out, _ = say(tmp_path, "status", "long", "--json")
    assert json.loads(out)["data"]["task"]["state"] == "gated"
