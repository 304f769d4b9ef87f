"""Verbs that only look. They need the graph alone and contact no host."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from runbook import report
from runbook.brief import BUDGET, EDITED, to_markdown
from runbook.brief_rows import silent_hosts
from runbook.cli.common import Number, answer, following, json_option, plain, reason_of, tell_next
from runbook.families import WORTH_A_LINE, Family, folded
from runbook.reader import Reader
from runbook.reasons import WHY, stop_pending
from runbook.views import held_claims, phase_title, reason_beside, task_row
from state import AttemptState
from state.graph import members
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runbook.views import HeldClaim, View
    from state import Attempt, Snapshot, Task


MEMBERS = 12
"""So many members of a family are told one by one."""
SHOW_PROGRESS = frozenset({"active", "starting", "verifying", "serving"})
"""States beside which the last progress line says more than a reason."""


@click.command("status")
@click.argument("task", required=False)
@click.option("--all", "every", is_flag=True, help="Each member of a family on its own line.")
@json_option
@click.pass_obj
def status_command(workspace: Path, task: str | None, every: bool, as_json: bool) -> None:
    """Show the graph, a family of tasks, or one task with its attempts and evidence.

    Example: runbook status train
    """
    with Reader.open(workspace) as reader:
        view = reader.view()
        named = members(view.snapshot, task) if task else ()
        if as_json:
            answer("status", view.snapshot.revision, _data(view, named))
        elif len(named) == 1:
            _print_task(view, named[0])
        elif named:
            rows = _rows(view, named)
            _print_rows(rows, width=max(len(row[0]) for row in rows))
        else:
            _print_graph(view, every=every)


def _data(view: View, named: Sequence[Task]) -> dict[str, Any]:
    if not named:
        return _graph_data(view)
    if len(named) == 1:
        return _task_data(view, named[0].id)
    return {"tasks": [task_row(view, task) for task in named]}


@click.command("next")
@json_option
@click.pass_obj
def next_command(workspace: Path, as_json: bool) -> None:
    """Print the next safe action and why.

    Example: runbook next
    """
    with Reader.open(workspace) as reader:
        view = reader.view()
    step = following(view)
    if as_json:
        data = {"next": step, "claims": held_claims(view)}
        answer("next", view.snapshot.revision, data)
        return
    if step.command:
        report.line(step.command)
    report.line(f"# {reason_of(step)}")
    for claim in held_claims(view):
        report.line(f"# {_claim_text(claim)}")
    if view.edited:
        report.line(f"# {report.located(EDITED)}")


@click.command("brief")
@click.option("--for", "about", metavar="TASK", help="With this task in front.")
@click.option("--tokens", type=Number(min=200), default=BUDGET, show_default=True, help="At most.")
@click.option("--md", is_flag=True, help="Markdown; the default.")
@json_option
@click.pass_obj
def brief_command(workspace: Path, about: str | None, tokens: int, md: bool, as_json: bool) -> None:
    """Print the hand-off text for whoever takes over: bounded, and made from one revision.

    Example: runbook brief --for train
    """
    if md and as_json:
        raise click.UsageError("--md or --json, not both.")
    with Reader.open(workspace) as reader:
        parts = reader.brief_parts(about, budget=tokens)
    text = report.located(to_markdown(parts))
    if as_json:
        answer("brief", parts.revision, {**plain(parts), "markdown": text})
    else:
        report.line(text.rstrip())


@click.command("results")
@click.argument("task", required=False)
@json_option
@click.pass_obj
def results_command(workspace: Path, task: str | None, as_json: bool) -> None:
    """Print what came out: results, time of each task, artifacts, the loss curve.

    With TASK, only of that one, or of that family.

    Example: runbook results
    """
    from runbook.cli.results import print_results, results_data

    with Reader.open(workspace) as reader:
        snapshot = reader.snapshot()
        tasks = members(snapshot, task) if task else snapshot.tasks
        if as_json:
            answer("results", snapshot.revision, results_data(snapshot, tasks))
        else:
            print_results(reader, snapshot, tasks)


@click.command("progress")
@click.option("--check", is_flag=True, help="Only tell whether PROGRESS.md is current (exit 4).")
@click.option("--fix", is_flag=True, help="Settle git's conflict markers; write over a later one.")
@json_option
@click.pass_obj
def progress_command(workspace: Path, check: bool, fix: bool, as_json: bool) -> None:
    """Bring PROGRESS.md up to date with the graph. People's notes in it stay.

    Example: runbook progress --check
    """
    from runbook.service import Service

    with Service.open(workspace) as service:
        path = service.workspace.progress_file
        mirrored = None if check else service.write_progress(force=fix)
        current = service.progress_is_current()
        revision = service.store.revision()
    if as_json:
        told = {name: getattr(mirrored, name, "") for name in ("edit", "problem")}
        changed = mirrored is not None and mirrored.changed
        data = {"path": str(path), "current": current, "changed": changed, **told}
        answer("progress", revision, data)
    elif mirrored is None:
        report.line(f"{path.name} is {'current' if current else 'not current'}")
    elif mirrored.problem:
        report.error(mirrored.problem, mirrored.hint)
    else:
        report.line(f"{path.name} {'written' if mirrored.changed else 'was current'}")
    if mirrored is not None and mirrored.edit and not as_json:
        report.line("What was written into our part of it is kept as a note.")
    if mirrored is not None and mirrored.problem:
        sys.exit(6)
    sys.exit(0 if current or not check else 4)


def _graph_data(view: View) -> dict[str, Any]:
    return {
        "name": view.snapshot.meta.name,
        "title": view.snapshot.meta.title,
        "next": plain(following(view)),
        "engine": view.engine,
        "edited": view.edited,
        "claims": held_claims(view),
        "tasks": [task_row(view, task) for task in view.snapshot.tasks],
        "hosts": [plain(host) for host in view.snapshot.hosts],
    }


def _claim_text(claim: HeldClaim) -> str:
    why = f": {report.clean(claim.reason)}" if claim.reason else ""
    what = "the whole run" if claim.subject == "run" else claim.subject
    left = report.seconds(claim.left_s)
    return f"{what} claimed by {report.clean(claim.holder)}, {left} left{why}"


def _task_data(view: View, task_id: str) -> dict[str, Any]:
    snapshot = view.snapshot
    task = snapshot.task(task_id)
    return {
        "task": {**plain(task_row(view, task)), "needs": plain(task.needs), "out": plain(task.out)},
        "definition": plain(task.definition),
        "attempts": [plain(attempt) for attempt in snapshot.attempts_of(task_id)],
        "checks": [plain(check) for check in snapshot.checks_of(task_id)],
    }


def _print_graph(view: View, *, every: bool) -> None:
    snapshot = view.snapshot
    report.line(f"{snapshot.meta.title}  (revision {snapshot.revision})")
    tasks = [task for task in snapshot.tasks if not task.removed]
    shown = tasks if every else list(folded(tasks))
    phases = [(phase, tuple(rows)) for phase, rows in groupby(shown, key=_phase)]
    tables = [(phase, _rows(view, rows)) for phase, rows in phases]
    width = max((len(row[0]) for _, rows in tables for row in rows), default=0)
    for phase, rows in tables:
        report.line(f"\n{report.clean(phase_title(snapshot, phase))}")
        _print_rows(rows, width=width, indent="  ")
    if view.edited:
        report.line(f"\n{report.located(EDITED)}")
    for claim in held_claims(view):
        report.line(f"\n{_claim_text(claim)}")
    for said in silent_hosts(snapshot):
        report.line(f"\n{report.clean(said)}")
    report.line()
    tell_next(following(view))


def _phase(row: Task | Family) -> str:
    return row.tasks[0].phase if isinstance(row, Family) else row.phase


def _rows(view: View, rows: Sequence[Task | Family]) -> list[tuple[str, str, str]]:
    """Name, state and what is to be said beside it."""
    lines: list[tuple[str, str, str]] = []
    for row in rows:
        if isinstance(row, Family):
            lines.append((f"{row.name}[*]", row.state, row.said))
            worth = [task for task in row.tasks if told_state(task) in WORTH_A_LINE]
            lines += [(f"  {t.id}", told_state(t), _beside(view, t)) for t in worth[:MEMBERS]]
            if len(worth) > MEMBERS:
                more = f"{len(worth) - MEMBERS} more: runbook status {row.name}"
                lines.append(("  ...", "", more))
        else:
            lines.append((row.id, told_state(row), _beside(view, row)))
    return lines


def _print_rows(rows: Sequence[tuple[str, str, str]], *, width: int, indent: str = "") -> None:
    for name, state, said in rows:
        word = report.painted(f"{report.state_word(state):<11}", state) if state else " " * 11
        report.line(f"{indent}{name:<{width}}  {word}  {said}".rstrip())


def _beside(view: View, task: Task) -> str:
    if pending := stop_pending(view.snapshot, task):
        return report.clean(pending)
    live = view.live.get(task.id)
    if live and live.progress and task.state.value in SHOW_PROGRESS:
        from runbook.cli.follow import progress_text

        return progress_text(live.progress)
    said = report.clean(reason_beside(view.snapshot, task))
    return view.waiting.get(task.id) or said or task.title


def _print_task(view: View, task: Task) -> None:
    from runbook.tui import naming  # the same words there; it draws nothing

    snapshot = view.snapshot
    why = report.clean(reason_beside(snapshot, task))
    report.line(f"{task.id}  {report.state_word(told_state(task))}  {why}".rstrip())
    for claim in held_claims(view):
        if claim.subject in ("run", task.id):
            report.line(_claim_text(claim))
    phase = report.clean(phase_title(snapshot, task.phase))
    report.line(f"{task.title}; step {task.step}, phase {phase}, host {task.role or '-'}")
    if task.needs:
        report.line("needs " + ", ".join(_need(snapshot, need.task) for need in task.needs))
    shown: Sequence[object] = ()
    for attempt in snapshot.attempts_of(task.id):
        ended = f" to {attempt.ended_at}" if attempt.ended_at else ""
        where = f" on {attempt.host}" if attempt.host else ""
        line = f"attempt {attempt.number}{where}: {_outcome(attempt)}"
        report.line(f"{line}, {attempt.created_at}{ended}")
        does = attempt.detail.get("summary", ())
        for text in does if does != shown else ():  # the same commands are told once
            report.line(f"    {report.clean(str(text))}")
        shown = does
    for check in snapshot.checks_of(task.id):
        found = ", ".join(naming.pair(key, value) for key, value in check.evidence.items())
        report.line(f"{check.verdict:<8}{naming.words(check.name)}  {found}".rstrip())
    for key, value in task.out.items():
        report.line(f"out.{key} = {report.clean(str(value))}")


def _outcome(attempt: Attempt) -> str:
    """`failed: exit code 75: boom`; `running`."""
    if attempt.state is not AttemptState.CHECK_FAILED:
        return f"{attempt.state}" + (f" ({attempt.cls})" if attempt.cls else "")
    said = str(attempt.evidence.get(WHY) or "").removeprefix("ended with ")
    how = f"exit code {attempt.exit_code}" if attempt.exit_code else str(attempt.cls)
    return f"failed: {report.clean(said or how)}"


def _need(snapshot: Snapshot, task_id: str) -> str:
    return f"{task_id} ({told_state(snapshot.task(task_id))})"
