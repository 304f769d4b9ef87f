"""Verbs that advance the graph in this terminal, or wait for whoever does."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import click

from runbook import report
from runbook.cli.acting import Acting, acting
from runbook.cli.common import (
    answer,
    finite,
    following,
    json_option,
    notify_option,
    reason_of,
    tell_next,
)
from runbook.cli.follow import Follow
from runbook.cli.heartbeat import Heartbeat
from runbook.errors import Exit, RunbookError
from runbook.notify import notifying
from runbook.reasons import WAITS_FOR_PERSON
from runbook.service import Service, ignore
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runbook.engine.events import Listener
    from runbook.views import NextAction, RunResult

OUTCOMES = {
    "done": Exit.OK,
    "failed": Exit.TASK_FAILED,
    "blocked": Exit.TASK_FAILED,
    "held": Exit.CONFLICT,
    "attention": Exit.UNKNOWN,
    "gate": Exit.NEEDS_APPROVAL,
    "budget": Exit.OVER_BUDGET,
    "interrupted": Exit.STILL_RUNNING,
}


@click.command("run")
@click.argument("tasks", nargs=-1)
@click.option("--until", metavar="TASK", help="Only what TASK needs, and TASK itself.")
@notify_option
@acting("run")
def run_command(
    call: Acting, tasks: tuple[str, ...], until: str | None, notify: tuple[str, ...]
) -> None:
    """Advance the graph until it ends, fails, or needs a person.

    Jobs run detached on their hosts: leaving with ctrl+c leaves them running, and the next
    `runbook run` finds them again. What runs and says nothing gets a line about once a minute.

    Example: runbook run --until tokenize
    """
    if call.dry_run:
        with call.open() as service:
            service.preview(until=until, only=tasks)
            call.rehearsed(service)
        return
    advance(
        call.workspace,
        "run",
        lambda service, stop, listen: service.run(
            until=until, only=tasks, stop_event=stop, listen=listen
        ),
        expect_rev=call.expect_rev,
        notify=notify,
        as_json=call.as_json,
    )


def advance(
    workspace: Path,
    verb: str,
    engine: Callable[[Service, threading.Event, Listener], RunResult],
    *,
    expect_rev: int | None,
    notify: tuple[str, ...],
    as_json: bool,
) -> NoReturn:
    """Runs an engine in this terminal until it ends or is asked to leave; then the process."""
    stop_event = threading.Event()
    previous = leave_softly(stop_event)
    listen: Listener = ignore if as_json else Follow()
    try:
        with Service.open(workspace, expect_rev=expect_rev) as service:
            beats = Heartbeat(workspace, listen) if isinstance(listen, Follow) else nullcontext()
            with beats, notifying(notify, service.workspace, listen) as told:
                result = engine(service, stop_event, told)
                told.ended(result)
            view = service.view()
            after = following(view)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if as_json:
        answer(verb, view.snapshot.revision, {"result": result})
    else:
        say(result, after, asked=listen.asked if isinstance(listen, Follow) else {})
    sys.exit(OUTCOMES[result.outcome])


def leave_softly(stop_event: threading.Event) -> dict[int, signal.Handlers]:
    """The first ctrl+c ends the loop after its round, the second one the process."""

    def leave(number: int, _frame: object) -> None:
        stop_event.set()
        signal.signal(number, signal.SIG_DFL)

    numbers = (signal.SIGINT, signal.SIGTERM)
    return {n: signal.signal(n, leave) for n in numbers}  # type: ignore[misc]


def say(result: RunResult, step: NextAction, *, asked: Mapping[str, str]) -> None:
    """How it ended, and what comes next; a question that was `asked` above is not told again."""
    report.line()
    word = {"done": "Done", "interrupted": "Left"}.get(result.outcome, "Stopped")
    reason = result.reason
    for task, question in asked.items():
        reason = reason.replace(f"{task} {question}", f"{task} waits for a person (see above)")
    reason = report.clean(reason)
    report.line(f"{word}: {reason}{'' if reason.endswith(('.', '?', '!')) else '.'}")
    if result.outcome != "done":
        told = WAITS_FOR_PERSON in step.reason and step.reason in result.reason
        tell_next(replace(step, reason=f"{step.task} waits for a yes") if told else step)


@click.command("wait")
@click.argument("task", required=False)
@click.option("--timeout", type=float, default=None, callback=finite, help="Seconds; then exit 10.")
@json_option
@click.pass_obj
def wait_command(workspace: Path, task: str | None, timeout: float | None, as_json: bool) -> None:
    """Wait until TASK ends, or until nobody advances the graph any more.

    Only looks: another `runbook run` or the TUI does the work.

    Example: runbook wait generate --timeout 600
    """
    with Service.open(workspace) as service:
        view, ended = service.wait(task, timeout_s=timeout)
        found = view.snapshot.task(task) if task else None
        state, now = (found.state.value, told_state(found)) if found else ("", "")
        if not ended and view.engine is None:
            raise RunbookError(
                f"Nobody advances the graph; `{task}` is {now}.",
                hint="Go on with `runbook run`.",
                exit_code=Exit.STILL_RUNNING,
            )
        if not ended:
            raise RunbookError(
                f"Still running after {timeout:g} s.",
                hint="Wait again, or look: `runbook status`.",
                exit_code=Exit.STILL_RUNNING,
            )
        failed = [t.id for t in view.snapshot.tasks if t.state.value in ("failed", "attention")]
    if as_json:
        answer("wait", view.snapshot.revision, {"task": task, "state": state, "failed": failed})
    else:
        report.line(f"{task}: {now}" if task else _nobody_runs(view.next))
    bad = state in ("failed", "attention") if task else bool(failed)
    sys.exit(Exit.TASK_FAILED if bad else Exit.OK)


def _nobody_runs(step: NextAction) -> str:
    why = reason_of(step)
    if step.verb == "nothing":
        return f"Nothing is left to wait for: {why}."
    return f"Nobody advances the graph. Next: {why}{'' if why.endswith(('.', '?', '!')) else '.'}"
