"""What came out of a run, for a terminal: numbers, times, artifacts and the loss curve."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook import report
from state import TaskState
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runbook.reader import Reader
    from state import Artifact, Attempt, Snapshot, Task

COLUMNS, ROWS = 78, 14
DIGEST = re.compile(r"[0-9a-f]{40,}")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def results_data(snapshot: Snapshot, tasks: Sequence[Task]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "tasks": {
            task.id: {
                "state": task.state.value,
                "reason": task.reason,
                "seconds": took(snapshot, task),
                "earlier": earlier(snapshot, task),
                "out": task.out,
            }
            for task in tasks
            if not task.removed
        },
        "artifacts": [
            {"uri": item.uri, "size": item.size, "sha256": item.sha256}
            for item in _artifacts(snapshot, tasks)
        ],
    }


def _artifacts(snapshot: Snapshot, tasks: Sequence[Task]) -> list[Artifact]:
    names = {task.id for task in tasks}
    return [item for item in snapshot.artifacts if item.task in names]


def print_results(reader: Reader, snapshot: Snapshot, tasks: Sequence[Task]) -> None:
    """Prints everything there is to show of the tasks."""
    _print_times(snapshot, tasks)
    _print_numbers(tasks)
    for task in tasks:
        path = reader.log_path(task.id, "progress")
        points = loss_points(path) if path else []
        if len(points) > 1:
            _plot(task, points)
    _print_artifacts(_artifacts(snapshot, tasks))
    for task in tasks:
        if task.step == "eval" and "macro" in task.out:
            report.line("\n" + headline(task.out))
    report.line(f"\nThe story:     {_short(reader.workspace.progress_file)}")
    place = _short(reader.workspace.root)
    report.line(f"Open the TUI:  {_program()}{'' if place == '.' else f' -w {place}'} tui")


def took(snapshot: Snapshot, task: Task) -> float | None:
    """Seconds that the last attempt took; None while it runs, or without any."""
    attempts = snapshot.attempts_of(task.id)
    return _seconds(attempts[-1]) if attempts else None


def earlier(snapshot: Snapshot, task: Task) -> dict[str, float]:
    """The attempts before the last one, counted apart: how many, and their seconds."""
    before = snapshot.attempts_of(task.id)[:-1]
    seconds = sum(_seconds(attempt) or 0.0 for attempt in before)
    return {"attempts": len(before), "seconds": round(seconds, 1)} if before else {}


def _seconds(attempt: Attempt) -> float | None:
    if attempt.ended_at is None:
        return None
    begun = datetime.fromisoformat(attempt.created_at)
    return round((datetime.fromisoformat(attempt.ended_at) - begun).total_seconds(), 1)


def _print_times(snapshot: Snapshot, tasks: Sequence[Task]) -> None:
    rows = []
    for task in tasks:
        seconds = took(snapshot, task)
        if not task.removed:
            time = report.seconds(seconds) if seconds is not None else "-"
            state = report.state_word(told_state(task))
            rows.append((task.id, time, state, _remark(snapshot, task)))
    report.line("Time of each task's last attempt; a server's is how long it ran")
    report.table(rows, width=report.WIDTH)


def _remark(snapshot: Snapshot, task: Task) -> str:
    """The title, or why it did not end well, and what was tried before."""
    before = earlier(snapshot, task)
    said = task.title
    if task.state in (TaskState.GATED, TaskState.FAILED, TaskState.ATTENTION) and task.reason:
        said = report.clean(task.reason)
    if not before:
        return said
    attempts = "1 attempt" if before["attempts"] == 1 else f"{before['attempts']:g} attempts"
    return f"{said} (before it {attempts}, {report.seconds(before['seconds'])})"


def _print_numbers(tasks: Sequence[Task]) -> None:
    rows = [
        (f"{task.id}.{key}", shown)
        for task in tasks
        for key, value in task.out.items()
        if (shown := _shown(value))
    ]
    if rows:
        report.line("\nResults")
        report.table(rows)


def _shown(value: Any) -> str:
    """A result as a person reads it; nothing for digests and nested values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = report.clean(str(value))
    return "" if DIGEST.fullmatch(text) else text


def headline(out: Mapping[str, Any]) -> str:
    """What an evaluation found, in one sentence."""
    methods = [f"trained {out['macro']:.2f}"]
    methods += [f"{name} {out[name]:.2f}" for name in ("untrained", "lookup") if name in out]
    said = f"Acceptance length on {out['prompts']} unseen prompts: {', '.join(methods)}"
    if "gain_low" in out:
        said += (
            f"; gain over untrained {out['gain']:+.2f} "
            f"(95 % interval {out['gain_low']:+.2f} to {out['gain_high']:+.2f})"
        )
    if "speedup" in out:
        said += f"; speed {out['speedup']:.2f}x of plain decoding here"
    return f"{said}; lossless: {out['lossless']}."


def _print_artifacts(artifacts: Sequence[Artifact]) -> None:
    if artifacts:
        report.line("\nArtifacts")
        report.table([(item.sha256[:12], report.size(item.size), item.uri) for item in artifacts])


def loss_points(path: Path) -> list[tuple[float, float]]:
    """(step, loss) of each progress line that has a loss. A torn last line is left out."""
    points = []
    for raw in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(raw)
            points.append((float(row["done"]), float(row["metrics"]["loss"])))
        except (ValueError, KeyError, TypeError):
            continue
    return points


def _plot(task: Task, points: list[tuple[float, float]]) -> None:
    import plotext

    width = min(COLUMNS, shutil.get_terminal_size((COLUMNS, 24)).columns)
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, ROWS)
    plotext.plot([x for x, _ in points], [y for _, y in points], marker="braille")
    plotext.title(f"{task.id}: loss by step")
    report.line()
    report.line(COLOUR.sub("", plotext.build()))  # its plain theme colours too


def _program() -> str:
    """What starts this program from here: its name, or its path where the name finds nothing."""
    found, own = shutil.which("runbook"), Path(sys.argv[0])
    if own.name != "runbook" or (found and own.exists() and own.samefile(found)):
        return "runbook"
    return _short(own)


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
