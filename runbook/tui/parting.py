"""What is said when all is done, and when a person leaves. Pure functions over a `View`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.errors import Exit
from runbook.report import located
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from state.telling import STOPPED_BY

if TYPE_CHECKING:
    from rich.text import Text

    from runbook.views import RunResult, View

_OUTCOMES = {
    "done": Exit.OK, "until": Exit.OK, "gate": Exit.NEEDS_APPROVAL, "held": Exit.CONFLICT,
    "interrupted": Exit.STILL_RUNNING, "failed": Exit.TASK_FAILED, "blocked": Exit.TASK_FAILED,
    "attention": Exit.UNKNOWN, "budget": Exit.OVER_BUDGET,
}  # fmt: skip


def open_jobs(view: View) -> list[str]:
    """What of ours lives on a host right now."""
    return [task.id for task in view.snapshot.tasks if task.state in model.OPEN]


def finished(view: View, result: RunResult | None, seconds: float | None) -> str:
    """What the top line says when nothing is left to do; empty before that."""
    tasks = [task for task in view.snapshot.tasks if not task.removed]
    if not tasks or any(task.state not in model.FINISHED for task in tasks):
        return ""
    ran = result is not None and result.started and seconds
    return f"All {len(tasks)} tasks are done{f' in {fmt.duration(seconds)}' if ran else ''}."


def ended(result: RunResult) -> tuple[str, bool]:
    """How a run ended, in words, and whether that is trouble; no words when all is done."""
    if result.outcome == "done":
        return "", False
    stopped = STOPPED_BY in result.reason
    trouble = result.outcome in ("failed", "attention", "held") and not stopped
    gate = result.outcome in ("gate", "budget") and not stopped
    return f"{'It waits for a yes' if gate else 'The run ended'}: {result.reason}", trouble


def exit_code(result: RunResult | None, *, left_running: bool) -> int:
    """What the run came to, as every verb tells it."""
    if result is None:
        return int(Exit.STILL_RUNNING if left_running else Exit.OK)
    return int(_OUTCOMES.get(result.outcome, Exit.OK))


def farewell(view: View, done: str) -> Text:
    """What goes on without us, and how to come back."""
    running = open_jobs(view)
    if running:
        names = ", ".join(running[:5]) + (" ..." if len(running) > 5 else "")
        said = (
            f"Still running on their hosts: {names}. Nothing new starts until `runbook run` "
            "or `runbook watch`; come back with `runbook tui`."
        )
    else:
        said = done or f"Nothing runs. Next: {view.next.command or 'runbook status'}"
    return fmt.text(located(said))
