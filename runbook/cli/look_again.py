"""Verbs that ask hosts again: whether results still hold, and what became of what may run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from runbook import report
from runbook.cli.acting import Acting, acting
from runbook.cli.common import answer, plain, token_option, use_token
from runbook.errors import Exit
from state import TaskState
from state.graph import members
from state.telling import told_state

if TYPE_CHECKING:
    from runbook.engine.reconcile import Seen


@click.command("verify")
@click.argument("tasks", nargs=-1)
@click.option("--redo", is_flag=True, help="Make what is stale ready to run again.")
@token_option
@acting("verify")
def verify_command(call: Acting, tasks: tuple[str, ...], redo: bool, token: str | None) -> None:
    """Run the recorded checks of done tasks again; what no longer holds turns stale (exit 4).

    A check that could not be carried out changes nothing (exit 5).

    A task that failed by a check alone, named here or by its family, is judged again by its checks
    as they are defined now, and is done when they hold: its work is not done again.

    Example: runbook verify tokenize
    """
    with call.open() as service:
        use_token(service, token, "verify", tasks[0] if tasks else "")
        found = service.verify(tasks)
        bad, unknown = (
            [name for name, rows in found.tasks.items() if any(r["verdict"] == what for r in rows)]
            for what in ("fail", "unknown")
        )
        again = service.redo(tasks) if redo else ()
        snapshot = service.snapshot()
        named = [task for name in tasks for task in members(snapshot, name)]
        if call.rehearsed(service):
            return
    if call.as_json:
        answer("verify", snapshot.revision, plain(found))
    else:
        rows = [(r["verdict"], name, r["check"]) for name, rs in found.tasks.items() for r in rs]
        report.table(rows)
        passed_over = {**found.left, **found.unanswered}
        for name, why in passed_over.items():
            report.line(f"{name}: not judged: {report.clean(why)}")
        more = f"; unknown: {len(unknown)}" if unknown else ""
        said = f"Checks of {len(found.tasks)} tasks: {len(rows)}; not held: {len(bad)}{more}."
        report.line(said)
        for task in named:
            if task.id not in passed_over:
                why = f": {report.clean(task.reason)}" if task.reason else ""
                report.line(f"{task.id} is {told_state(task)}{why}")
        if again:
            report.line(f"ready again: {', '.join(again)}")
    if any(task.state is TaskState.FAILED for task in named) or (bad and not redo):
        sys.exit(Exit.CHECK_FAILED)
    sys.exit(Exit.UNKNOWN if unknown or found.unanswered else Exit.OK)


@click.command("reconcile")
@click.argument("name", metavar="[TASK|HOST]", default="")
@acting("reconcile")
def reconcile_command(call: Acting, name: str) -> None:
    """Look at all that may run, or of TASK or HOST, again and now; say what changed.

    Nothing is started and nothing is stopped. Exit 5 when a host does not answer.

    Example: runbook reconcile gpu
    """
    with call.open() as service:
        found = service.reconcile(name)
        revision = service.store.revision()
        if call.rehearsed(service):
            return
    if call.as_json:
        rows = [{**plain(seen), "changed": seen.changed} for seen in found]
        answer("reconcile", revision, {"attempts": rows})
    else:
        report.table(_seen_row(seen) for seen in found)
        changed = sum(seen.changed for seen in found)
        report.line(f"{len(found)} attempts looked at, {changed} changed.")
        for seen in found:
            if seen.then:
                said = f"{seen.task}: `runbook run` sweeps it, then tries again ({seen.then})"
                report.line(report.located(said))
    silent = any(seen.found.startswith("unknown") for seen in found)
    sys.exit(Exit.UNKNOWN if silent else Exit.OK)


def _seen_row(seen: Seen) -> tuple[str, ...]:
    became = f"{seen.before} -> {seen.after}" if seen.changed else f"still {seen.after}"
    return (seen.task, seen.host, became, report.clean(seen.found))
