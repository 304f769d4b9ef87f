"""Verbs that decide about tasks: stop, again, leave out, say yes, note."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runbook import report
from runbook.cli.acting import Acting, acting
from runbook.cli.common import answer, json_option, token_option, use_token
from runbook.cli.follow import Follow
from runbook.errors import RunbookError
from runbook.placement import BELOW, unsettled
from runbook.reader import Reader
from runbook.requests import RETRY_BELOW
from runbook.service import Service, ignore
from runbook.views import task_row
from state import TaskState
from state.telling import is_stopped, told_state

if TYPE_CHECKING:
    from pathlib import Path

    from state import Task


@click.command("stop")
@click.argument("task")
@token_option
@acting("stop")
def stop_command(call: Acting, task: str, token: str | None) -> None:
    """Stop a task's job and verify that nothing of it is left.

    Example: runbook stop serve-a
    """
    with call.open() as service:
        use_token(service, token, "stop", task)
        said = service.stop(task, listen=ignore if call.as_json else Follow())
        _answer(call, service, service.snapshot().task(task), said)


@click.command("retry")
@click.argument("task", required=False)
@click.option("--all-failed", is_flag=True, help="Every failed task instead of one.")
@click.option("--below", is_flag=True, help="And what was made of its results: all that needs it.")
@click.option("--reason", default="", help="Why; it is recorded. Done work asks for it.")
@token_option
@acting("retry")
def retry_command(
    call: Acting, task: str | None, all_failed: bool, below: bool, reason: str, token: str | None
) -> None:
    """Make a failed, stale, skipped or stopped task ready again, as a new attempt.

    With a reason also one that is done: its results are made anew. What needs it keeps what it has,
    or is made again with --below.

    Example: runbook retry train --reason "more memory now"
    """
    if bool(task) == all_failed:
        raise RunbookError(
            "Name a task, or give --all-failed.", hint="`runbook status` lists them."
        )
    if below and not task:
        raise RunbookError("--below needs a task.", hint="Name the one to begin with.")
    with call.open() as service:
        if task:
            use_token(service, token, RETRY_BELOW if below else "retry", task)
            moved = service.retry(task, reason=reason, below=below)
            said = report.located(f"{task} is {moved.state}; go on: `runbook run`")
            _answer(call, service, moved, said)
            return
        names = service.retry_failed()
        said = f"ready again: {', '.join(names)}" if names else "no task has failed"
        call.answer(service, {"tasks": names}, said)


@click.command("supersede")
@click.argument("task")
@click.option("--reason", required=True, help="Why the lost attempt is given up.")
@token_option
@acting("supersede")
def supersede_command(call: Acting, task: str, reason: str, token: str | None) -> None:
    """Give up a lost attempt for a new one, after making sure that nothing of it runs.

    Example: runbook supersede train --reason "the box was rebuilt"
    """
    with call.open() as service:
        use_token(service, token, "supersede", task)
        moved = service.supersede(task, reason=reason)
        _answer(call, service, moved, f"{task} is {moved.state}")


@click.command("skip")
@click.argument("task")
@click.option("--reason", required=True, help="Why; it is recorded and shown.")
@token_option
@acting("skip")
def skip_command(call: Acting, task: str, reason: str, token: str | None) -> None:
    """Leave a task out, with a reason; what needs it may run.

    Example: runbook skip probe --reason "known host"
    """
    with call.open() as service:
        use_token(service, token, "skip", task)
        _answer(call, service, service.skip(task, reason), f"{task} is skipped")


@click.group("gate")
def gate_command() -> None:
    """Tasks that wait for a person's yes."""


@gate_command.command("list")
@json_option
@click.pass_obj
def gates_command(workspace: Path, as_json: bool) -> None:
    """List the tasks that wait for a person's yes, with what is asked, and what is stopped.

    Example: runbook gate list
    """
    with Reader.open(workspace) as reader:
        view = reader.view()
    snapshot = view.snapshot
    waiting = [t for t in snapshot.tasks if t.state is TaskState.GATED and not t.removed]
    if as_json:
        answer("gate", snapshot.revision, {"tasks": [task_row(view, task) for task in waiting]})
        return
    above = unsettled(snapshot)
    said = {name: f"; first settle {first}: {BELOW}" for name, first in above.items()}
    rows = [
        (
            task.id,
            report.state_word(told_state(task)),
            report.clean(f"{task.reason}{said.get(task.id, '')}"),
        )
        for task in waiting
    ]
    report.table(rows, width=report.WIDTH)
    if not all(map(is_stopped, waiting)):
        report.line(report.located("`runbook gate approve TASK` says yes."))
    if any(map(is_stopped, waiting)):
        report.line(report.located("`runbook retry TASK` runs again what was stopped."))
    if not waiting:
        report.line("No task waits for a person.")


@gate_command.command("approve")
@click.argument("task")
@click.option("--reason", default="", help="What was looked at.")
@token_option
@acting("gate")
def approve_command(call: Acting, task: str, reason: str, token: str | None) -> None:
    """Say yes to a task that waits for a person. What somebody stopped is retried instead.

    Example: runbook gate approve release --reason "numbers checked"
    """
    with call.open() as service:
        use_token(service, token, "approve", task)
        moved = service.approve(task, reason)
        _answer(call, service, moved, f"{task} is {moved.state}")


@click.command("note")
@click.argument("text")
@click.option("--task", help="The task it is about; default: the whole run.")
@click.option("--decision", is_flag=True, help="A decision: shown to everybody who takes over.")
@acting("note")
def note_command(call: Acting, text: str, task: str | None, decision: bool) -> None:
    """Keep a note or a decision; PROGRESS.md and the brief show it.

    Example: runbook note --decision "lr 6e-4, the lower one stalled" --task train
    """
    with call.open() as service:
        note = service.note(text, task=task, decision=decision)
        call.answer(service, {"note": note}, "noted")


def _answer(call: Acting, service: Service, task: Task, said: str) -> None:
    data = {"task": task.id, "state": task.state.value, "reason": task.reason}
    call.answer(service, data, said)
