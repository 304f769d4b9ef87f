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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runbook.reader import Reader
    from state import Snapshot, Task

COLUMNS, ROWS = 78, 14
DIGEST = re.compile(r"[0-9a-f]{40,}")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def results_data(snapshot: Snapshot) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "tasks": {
            task.id: {"state": task.state.value, "seconds": took(snapshot, task), "out": task.out}
            for task in snapshot.tasks
            if not task.removed
        },
        "artifacts": [
            {"uri": item.uri, "size": item.size, "sha256": item.sha256}
            for item in snapshot.artifacts
        ],
    }


def print_results(reader: Reader, snapshot: Snapshot) -> None:
    """Prints everything there is to show."""
    _print_times(snapshot)
    _print_numbers(snapshot)
    for task in snapshot.tasks:
        path = reader.log_path(task.id, "progress")
        points = loss_points(path) if path else []
        if len(points) > 1:
            _plot(task, points)
    _print_artifacts(snapshot)
    for task in snapshot.tasks:
        if task.step == "eval" and "macro" in task.out:
            report.line("\n" + headline(task.out))
    report.line(f"\nThe story:     {_short(reader.workspace.progress_file)}")
    program = _short(Path(sys.argv[0])) if sys.argv[0].endswith("/runbook") else "runbook"
    report.line(f"Open the TUI:  {program} -w {_short(reader.workspace.root)} tui")


def took(snapshot: Snapshot, task: Task) -> float | None:
    """Seconds that all attempts of a task took together."""
    total, known = 0.0, False
    for attempt in snapshot.attempts_of(task.id):
        if attempt.ended_at:
            begun = datetime.fromisoformat(attempt.created_at)
            total += (datetime.fromisoformat(attempt.ended_at) - begun).total_seconds()
            known = True
    return round(total, 1) if known else None


def _print_times(snapshot: Snapshot) -> None:
    rows = []
    for task in snapshot.tasks:
        seconds = took(snapshot, task)
        if not task.removed:
            time = report.seconds(seconds) if seconds is not None else "-"
            rows.append((task.id, time, report.state_word(task.state.value), task.title))
    report.line("Time of each task; a server's is how long it ran")
    report.table(rows)


def _print_numbers(snapshot: Snapshot) -> None:
    rows = [
        (f"{task.id}.{key}", shown)
        for task in snapshot.tasks
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


def _print_artifacts(snapshot: Snapshot) -> None:
    if snapshot.artifacts:
        report.line("\nArtifacts")
        report.table(
            [(item.sha256[:12], report.size(item.size), item.uri) for item in snapshot.artifacts]
        )


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


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
