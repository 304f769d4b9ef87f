"""Verbs that act on the graph or on jobs."""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import click

from runbook import report
from runbook.cli.common import (
    answer,
    dry_run_option,
    expect_option,
    following,
    json_option,
    notify_option,
    plain,
    reason_of,
    tell_next,
    tell_rehearsal,
    token_option,
    use_token,
)
from runbook.cli.follow import Follow
from runbook.errors import Exit, RunbookError
from runbook.notify import notifying
from runbook.reader import Reader
from runbook.reasons import WAITS_FOR_PERSON
from runbook.service import Service, ignore
from runbook.views import task_row
from state import TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runbook.engine.events import Listener
    from runbook.views import NextAction, RunResult
    from state import Task

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
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def run_command(
    workspace: Path,
    tasks: tuple[str, ...],
    until: str | None,
    notify: tuple[str, ...],
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Advance the graph until it ends, fails, or needs a person.

    Jobs run detached on their hosts: leaving with ctrl+c leaves them running, and the next
    `runbook run` finds them again.

    Example: runbook run --until tokenize
    """
    if dry_run:
        with Service.open(workspace, expect_rev=expect_rev, dry_run=True) as service:
            service.preview(until=until, only=tasks)
            tell_rehearsal(service, "run", as_json=as_json)
        return
    advance(
        workspace,
        "run",
        lambda service, stop, listen: service.run(
            until=until, only=tasks, stop_event=stop, listen=listen
        ),
        expect_rev=expect_rev,
        notify=notify,
        as_json=as_json,
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
            with notifying(notify, service.workspace, listen) as told:
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
@click.option("--timeout", type=float, default=None, help="Seconds; then exit 10.")
@json_option
@click.pass_obj
def wait_command(workspace: Path, task: str | None, timeout: float | None, as_json: bool) -> None:
    """Wait until TASK ends, or until nobody advances the graph any more.

    Only looks: another `runbook run` or the TUI does the work.

    Example: runbook wait generate --timeout 600
    """
    with Service.open(workspace) as service:
        view, ended = service.wait(task, timeout_s=timeout)
        state = view.snapshot.task(task).state.value if task else ""
        if not ended and view.engine is None:
            raise RunbookError(
                f"Nobody advances the graph; `{task}` is {state}.",
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
        report.line(f"{task}: {state}" if task else _nobody_runs(view.next))
    bad = state in ("failed", "attention") if task else bool(failed)
    sys.exit(Exit.TASK_FAILED if bad else Exit.OK)


def _nobody_runs(step: NextAction) -> str:
    why = reason_of(step)
    if step.verb == "nothing":
        return f"Nothing is left to wait for: {why}."
    return f"Nobody advances the graph. Next: {why}{'' if why.endswith(('.', '?', '!')) else '.'}"


@click.command("stop")
@click.argument("task")
@token_option
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def stop_command(
    workspace: Path,
    task: str,
    token: str | None,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Stop a task's job and verify that nothing of it is left.

    Example: runbook stop serve-a
    """
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        use_token(service, token, "stop", task)
        said = service.stop(task, listen=ignore if as_json else Follow())
        _answer(service, "stop", service.snapshot().task(task), as_json, said)


@click.command("retry")
@click.argument("task", required=False)
@click.option("--all-failed", is_flag=True, help="Every failed task instead of one.")
@click.option("--below", is_flag=True, help="And what was made of its results: all that needs it.")
@click.option("--reason", default="", help="Why; it is recorded. Done work asks for it.")
@token_option
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def retry_command(
    workspace: Path,
    task: str | None,
    all_failed: bool,
    below: bool,
    reason: str,
    token: str | None,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
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
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        if task:
            use_token(service, token, "retry", task)
            moved = service.retry(task, reason=reason, below=below)
            said = report.located(f"{task} is {moved.state}; go on: `runbook run`")
            _answer(service, "retry", moved, as_json, said)
            return
        names = service.retry_failed()
        if dry_run:
            tell_rehearsal(service, "retry", as_json=as_json)
        elif as_json:
            answer("retry", service.store.revision(), {"tasks": names})
        else:
            report.line(f"ready again: {', '.join(names)}" if names else "no task has failed")


@click.command("supersede")
@click.argument("task")
@click.option("--reason", required=True, help="Why the lost attempt is given up.")
@token_option
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def supersede_command(
    workspace: Path,
    task: str,
    reason: str,
    token: str | None,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give up a lost attempt for a new one, after making sure that nothing of it runs.

    Example: runbook supersede train --reason "the box was rebuilt"
    """
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        use_token(service, token, "supersede", task)
        moved = service.supersede(task, reason=reason)
        _answer(service, "supersede", moved, as_json, f"{task} is {moved.state}")


@click.command("skip")
@click.argument("task")
@click.option("--reason", required=True, help="Why; it is recorded and shown.")
@token_option
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def skip_command(
    workspace: Path,
    task: str,
    reason: str,
    token: str | None,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Leave a task out, with a reason; what needs it may run.

    Example: runbook skip probe --reason "known host"
    """
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        use_token(service, token, "skip", task)
        moved = service.skip(task, reason)
        _answer(service, "skip", moved, as_json, f"{task} is skipped")


@click.command("verify")
@click.argument("tasks", nargs=-1)
@click.option("--redo", is_flag=True, help="Make what is stale ready to run again.")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def verify_command(
    workspace: Path,
    tasks: tuple[str, ...],
    redo: bool,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run the recorded checks of done tasks again; what no longer holds turns stale (exit 4).

    Example: runbook verify tokenize
    """
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        found = service.verify(tasks)
        bad = [name for name, rows in found.items() if any(r["verdict"] == "fail" for r in rows)]
        again = service.redo(tasks) if redo else ()
        revision = service.store.revision()
        if dry_run:
            tell_rehearsal(service, "verify", as_json=as_json)
            return
    if as_json:
        answer("verify", revision, {"tasks": found})
    else:
        rows = [(r["verdict"], name, r["check"]) for name, rs in found.items() for r in rs]
        report.table(rows)
        report.line(f"Checks of {len(found)} done tasks: {len(rows)}; not held: {len(bad)}.")
        if again:
            report.line(f"ready again: {', '.join(again)}")
    sys.exit(Exit.CHECK_FAILED if bad and not redo else Exit.OK)


@click.command("reconcile")
@click.argument("name", metavar="[TASK|HOST]", default="")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def reconcile_command(
    workspace: Path, name: str, expect_rev: int | None, dry_run: bool, as_json: bool
) -> None:
    """Look at all that may run, or of TASK or HOST, again and now; say what changed.

    Nothing is started and nothing is stopped. Exit 5 when a host does not answer.

    Example: runbook reconcile gpu
    """
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        found = service.reconcile(name)
        revision = service.store.revision()
        if dry_run:
            tell_rehearsal(service, "reconcile", as_json=as_json)
            return
    silent = [seen for seen in found if seen.found.startswith("unknown")]
    if as_json:
        answer(
            "reconcile", revision, {"attempts": [{**plain(s), "changed": s.changed} for s in found]}
        )
    else:
        report.table(
            [
                (seen.task, seen.host, f"{seen.before} -> {seen.after}", report.clean(seen.found))
                if seen.changed
                else (seen.task, seen.host, f"still {seen.after}", report.clean(seen.found))
                for seen in found
            ]
        )
        changed = sum(seen.changed for seen in found)
        report.line(f"{len(found)} attempts looked at, {changed} changed.")
    sys.exit(Exit.UNKNOWN if silent else Exit.OK)


@click.group("gate")
def gate_command() -> None:
    """Tasks that wait for a person's yes."""


@gate_command.command("list")
@json_option
@click.pass_obj
def gates_command(workspace: Path, as_json: bool) -> None:
    """List the tasks that wait for a person's yes, with what is asked.

    Example: runbook gate list
    """
    with Reader.open(workspace) as reader:
        view = reader.view()
    snapshot = view.snapshot
    waiting = [t for t in snapshot.tasks if t.state is TaskState.GATED and not t.removed]
    if as_json:
        answer("gate", snapshot.revision, {"tasks": [task_row(view, task) for task in waiting]})
        return
    report.table([(task.id, report.clean(task.reason)) for task in waiting], width=report.WIDTH)
    say_yes = report.located("`runbook gate approve TASK` says yes.")
    report.line(say_yes if waiting else "No task waits for a person.")


@gate_command.command("approve")
@click.argument("task")
@click.option("--reason", default="", help="What was looked at.")
@token_option
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def approve_command(
    workspace: Path,
    task: str,
    reason: str,
    token: str | None,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Say yes to a task that waits for a person.

    Example: runbook gate approve release --reason "numbers checked"
    """
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        use_token(service, token, "approve", task)
        moved = service.approve(task, reason)
        _answer(service, "gate", moved, as_json, f"{task} is {moved.state}")


@click.command("note")
@click.argument("text")
@click.option("--task", help="The task it is about; default: the whole run.")
@click.option("--decision", is_flag=True, help="A decision: shown to everybody who takes over.")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def note_command(
    workspace: Path,
    text: str,
    task: str | None,
    decision: bool,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Keep a note or a decision; PROGRESS.md and the brief show it.

    Example: runbook note --decision "lr 6e-4, the lower one stalled" --task train
    """
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        note = service.note(text, task=task, decision=decision)
        if dry_run:
            tell_rehearsal(service, "note", as_json=as_json)
        elif as_json:
            answer("note", service.store.revision(), {"note": note})
        else:
            report.line("noted")


def _answer(service: Service, verb: str, task: Task, as_json: bool, said: str) -> None:
    if service.dry_run:
        tell_rehearsal(service, verb, as_json=as_json)
    elif as_json:
        data = {"task": task.id, "state": task.state.value, "reason": task.reason}
        answer(verb, service.store.revision(), data)
    else:
        report.line(said)
