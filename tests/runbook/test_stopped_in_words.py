"""What a person stopped is told as stopped, by each verb as on the screen; JSON has its state."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

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
    for words, told in (
        (("status",), "long   ⊘ stopped "), (("status", "long"), "long  ⊘ stopped "),
        (("status", "after"), "needs long (stopped)"), (("results",), "⊘ stopped"),
        (("wait", "long"), "long: stopped"),
    ):  # fmt: skip
        _, out, _ = say(tmp_path, *words)
        assert told in out
        assert "◆" not in out
    _, out, _ = say(tmp_path, "status", "long", "--json")
    assert json.loads(out)["data"]["task"]["state"] == "gated"
