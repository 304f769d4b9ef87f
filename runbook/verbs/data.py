"""Verbs on data: what audits and training runs left on their hosts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from runbook.errors import RunbookError
from runbook.verbs.base import Writer
from runbook.views import Checkpoint
from state import TaskState
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from state import Task

STEP = re.compile(r"step-\d{1,12}")
REPORT_BYTES = 4 << 20
SAMPLES_BYTES = 16 << 20
"""The audit keeps few samples; a longer file is somebody else's."""


CHECKPOINTS_S = 60.0
_LIST = """
cd -- "$1" 2>/dev/null || exit 4
for folder in step-*; do [ -d "$folder" ] && du -sk -- "$folder"; done
for mark in latest best; do
  [ -f "$mark" ] && printf '%s %s\\n' "$mark" "$(head -c 200 "$mark")"
done
exit 0
"""


class DataVerbs(Writer):
    """Reading what steps left on their hosts, within bounds."""

    def audit(self, task_id: str) -> Mapping[str, Any]:
        """What an audit found: `{"report": ..., "samples": [...], "path": ...}`.

        The first answer is kept in the workspace, so that it outlives its machine.

        Raises:
            RunbookError: the task is no audit, did not end, or its files are not what it writes.
            RemoteError: its host does not answer, and no copy is here yet.
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        attempt = snapshot.latest_attempt(task_id)
        if task.step != "audit" or attempt is None or not task.out.get("path"):
            raise _nothing(task)
        kept = self.workspace.private / "audits" / f"{attempt.id}.json"
        found = _kept(kept)
        if found is None:
            host = self._hosts.of_role(snapshot, attempt.host)
            folder = str(task.out["path"])
            report = _parsed(host.read_file(f"{folder}/report.json", REPORT_BYTES), "report.json")
            rows = _parsed(host.read_file(f"{folder}/samples.json", SAMPLES_BYTES), "samples.json")
            found = {"path": folder, "report": report, "samples": rows.get("samples", [])}
            if task.state in (TaskState.DONE, TaskState.FAILED, TaskState.STALE):
                _keep(kept, found)
        return found

    def checkpoints(self, task_id: str) -> tuple[Checkpoint, ...]:
        """The checkpoints of a training run as they lie on its host now, oldest first.

        Raises:
            RunbookError: the task trains nothing, or did not begin.
            RemoteError: its host does not answer.
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        attempt = snapshot.latest_attempt(task_id)
        folder = str((attempt.detail.get("out") or {}).get("path", "")) if attempt else ""
        if task.step != "train" or attempt is None or not folder:
            raise RunbookError(
                f"`{task_id}` has no checkpoints: its step is `{task.step}`, "
                f"and it is {told_state(task)}.",
                hint="`train` steps have, once they began.",
            )
        host = self._hosts.of_role(snapshot, attempt.host)
        argv = ["sh", "-c", _LIST, "sh", folder]
        answer = host.transport.run(argv, timeout=CHECKPOINTS_S)
        return listed(folder, answer.out.decode("utf-8", "replace"))


def listed(folder: str, text: str) -> tuple[Checkpoint, ...]:
    """What the listing on the host says; odd lines are passed over."""
    marks, found = {}, {}
    for line in text.splitlines():
        first, _, rest = line.partition("\t" if "\t" in line else " ")
        if first in ("latest", "best"):
            marks[first] = rest.strip()
        elif first.isdigit() and STEP.fullmatch(rest.strip()):
            found[rest.strip()] = int(first) * 1024
    return tuple(
        Checkpoint(
            path=f"{folder}/{name}", step=int(name.removeprefix("step-")), size=found[name],
            latest=marks.get("latest") == name, best=marks.get("best") == name,
        )
        for name in sorted(found)
    )  # fmt: skip


def _nothing(task: Task) -> RunbookError:
    if task.step != "audit":
        return RunbookError(
            f"`{task.id}` is no audit, its step is `{task.step}`.",
            hint="`runbook status` lists the tasks.",
        )
    return RunbookError(
        f"`{task.id}` has written no report yet: it is {told_state(task)}.",
        hint=f"It does when it runs: `runbook run --until {task.id}`.",
    )


def _kept(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _keep(path: Path, found: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    aside.replace(path)


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RunbookError(
            f"{name} is no JSON object ({len(data):,} bytes).", hint="Run the audit again."
        )
    return found
