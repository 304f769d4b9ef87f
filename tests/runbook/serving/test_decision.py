"""What a task found out, such as the best flags, is kept as a decision with its figures."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from tests.support import fake_sglang
from tests.support.ports import free_ports
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


def bench(folder: Path, ports: dict[str, int]) -> str:
    """A task that compares servers, each with a port of its own by which it is told what to do."""
    rows = [{"id": str(n), "messages": [{"role": "user", "content": "x"}]} for n in range(8)]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    variants = [{"name": name, "port": port} for name, port in ports.items()]
    serve = {"venv": str(folder / "venv"), "model": "/m", "served_name": "m", "device": "cpu",
             "port": min(ports.values())}  # fmt: skip
    given = {"venv": sys.prefix, "prompts": str(folder / "p.jsonl"), "concurrency": [2],
             "out": str(folder / "bench"), "serve": serve, "variants": variants}  # fmt: skip
    return (
        "  bench:\n    title: Bench\n    phase: one\n    step: bench\n"
        f"    with: {json.dumps(given)}\n"
    )


def test_the_fastest_servers_flags_are_kept_with_their_figures(tmp_path: Path) -> None:
    venv, ports = tmp_path / "venv", dict(zip(("plain", "mtp"), free_ports(2), strict=True))
    fake_sglang.install(venv)
    fake_sglang.tell(venv, ports["plain"], delay=0.8)
    with make(tmp_path, bench(tmp_path, ports)) as service:
        assert service.run().outcome == "done"
        (note,) = service.snapshot().notes
        assert (note.task, note.decision) == ("bench", True)
        assert note.text.startswith("servers run as `mtp` with 2 requests at a time: ")
        assert "tok/s each on 8 prompts" in note.text
        assert "best of the others: plain " in note.text
        assert note.text in service.brief()


def test_why_no_server_could_be_chosen_is_told_with_the_next_step(tmp_path: Path) -> None:
    venv, ports = tmp_path / "venv", {"plain": free_ports(1)[0]}
    fake_sglang.install(venv)
    says = [
        "Traceback (most recent call last):",
        '  File "hub.py", line 595, in cached_files',
        '    raise OSError(f"{e}") from e',
        "OSError: Repo id must use alphanumeric chars: '/m'.",
    ]
    fake_sglang.tell(venv, ports["plain"], says=says, exit=1)
    with make(tmp_path, bench(tmp_path, ports)) as service:
        assert service.run().outcome == "failed"
        reason = service.snapshot().task("bench").reason
    assert "there is no such model on the host. Next: look at `model`" in reason
    assert "plain: ended with 1: OSError: Repo id must use" in reason
    assert "raise OSError" not in reason
