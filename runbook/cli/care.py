"""Verbs that look after a workspace: what an edit would change, what is wrong, staying awake."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runbook import report
from runbook.cli import advance, hosts, setup
from runbook.cli.common import answer, expect_option, json_option, notify_option, plain
from runbook.errors import Exit, RunbookError
from runbook.reader import Reader
from runbook.workspace import find_workspace
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from runbook.diff import Difference, FieldChange
    from runbook.doctor import Finding
    from runbook.plan import Runbook

MARKS = {"ok": "✓", "note": "·", "problem": "✗"}
LONGEST_VALUE = 60
CONTEXT = 15


@click.command("doctor")
@click.option("--no-hosts", is_flag=True, help="Do not ask hosts; tell what was recorded.")
@click.option("--drill", metavar="ROLE", help="Rehearse the loss of the connection on a host.")
@json_option
@click.pass_obj
def doctor_command(workspace: Path, no_hosts: bool, drill: str | None, as_json: bool) -> None:
    """Look the workspace over: database, PROGRESS.md, engine, attempts, documents, hosts.

    Changes nothing. Exit 4 when something needs you; each finding says what to do.

    Example: runbook doctor
    """
    from runbook.doctor import check_up

    if drill is not None:
        hosts.rehearse(workspace, drill, as_json=as_json)
    found = check_up(workspace, ask_hosts=not no_hosts)
    if as_json:
        data = {"healthy": found.healthy, "findings": found.findings}
        answer("doctor", found.revision, data)
    else:
        for finding in found.findings:
            _print_finding(finding)
    sys.exit(Exit.OK if found.healthy else Exit.CHECK_FAILED)


def _print_finding(finding: Finding) -> None:
    report.line(f"{MARKS[finding.level]} {finding.part:<9} {report.clean(finding.text)}")
    if finding.next:
        report.line(f"{' ' * 12}{report.clean(finding.next)}")


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--cost", is_flag=True, help="Hours, bytes and money instead: spent and to come.")
@json_option
@click.pass_obj
def plan_command(
    workspace: Path, file: Path | None, params: tuple[str, ...], cost: bool, as_json: bool
) -> None:
    """Show what taking over an edited runbook.yaml (or FILE) would change. Writes nothing.

    Example: runbook plan runbook.yaml
    """
    from runbook.diff import compare

    if cost:
        if file is not None:
            hint = "Take the file over first: `runbook init`."
            raise RunbookError("--cost is about the graph as it is, not about FILE.", hint=hint)
        from runbook.cli.cost import tell_costs

        tell_costs(workspace, as_json=as_json)
        return
    found = find_workspace(workspace)
    path = file or found.runbook_file
    kept = {**setup.kept_params(found), **setup.given_params(params)}
    runbook = _loaded(path, kept, as_json=as_json)
    with Reader.open(found.root) as reader:
        snapshot = reader.snapshot()
    difference = compare(snapshot, runbook)
    if as_json:
        data = {"file": str(path), "same": difference.is_empty, **plain(difference)}
        answer("plan", snapshot.revision, data)
        return
    _print_difference(difference, {task.id: told_state(task) for task in snapshot.tasks})
    if difference.is_empty:
        report.line(f"{path}: nothing would change.")
        return
    init = " ".join(["runbook init", *(f"-p {shlex.quote(pair)}" for pair in params)])
    if path.resolve() == found.runbook_file.resolve():
        report.line(report.located(f"Nothing was changed. Take it over: {init}"))
    else:
        said = f"Nothing was changed. Put it in {found.runbook_file}; then: {init}"
        report.line(report.located(said))


def _loaded(path: Path, params: dict[str, str], *, as_json: bool) -> Runbook:
    from runbook.plan import PlanError, load_runbook

    try:
        return load_runbook(path, params)
    except PlanError as error:
        if not as_json:
            raise RunbookError(str(error), hint=error.hint) from error
        answer("plan", None, {"file": str(path), "problems": plain(error.problems)})
        sys.exit(Exit.USAGE)


def _print_difference(difference: Difference, told: Mapping[str, str]) -> None:
    _section("Runbook", (_field(change) for change in difference.head))
    _section("New", (f"+ {name}" for name in difference.new))
    for title, records in (("Changed", difference.changed), ("Cosmetic", difference.cosmetic)):
        rows = []
        for record in records:
            effect = f"; {record.effect}" if record.effect else ""
            rows.append(f"~ {record.task} ({told[record.task]}{effect})")
            rows += [f"    {_field(change)}" for change in record.fields]
        _section(title, rows)
    removed = (f"- {gone.task} ({told[gone.task]}; {gone.effect})" for gone in difference.removed)
    _section("Removed", removed)
    if difference.reordered:
        _section("Order", ["the tasks stand in another order"])
    _section("Turns stale", difference.stale)
    below = (f"{row.task} ({told[row.task]}): {row.effect}" for row in difference.affected)
    _section("Below them", below)


def _section(title: str, rows: Iterable[str]) -> None:
    rows = list(rows)
    if rows:
        report.line(title)
        for row in rows:
            report.line(f"  {row}")
        report.line()


def _field(change: FieldChange) -> str:
    if isinstance(change.before, list) and isinstance(change.after, list):
        gone = [f"-{_entry(one)}" for one in change.before if one not in change.after]
        new = [f"+{_entry(one)}" for one in change.after if one not in change.before]
        if gone or new:  # else they only changed places
            return f"{change.field}: {', '.join((*gone, *new))}"
    before, after = _text(change.before), _text(change.after)
    # What they share at their beginnings would hide what differs.
    pairs = enumerate(zip(before, after, strict=False))
    differs = next((at for at, (one, other) in pairs if one != other), 0)
    at = max(0, differs - CONTEXT)
    return f"{change.field}: {_short(before, at)} -> {_short(after, at)}"


def _entry(value: Any) -> str:
    """One of a list; a need as its task, with what it waits for where that is not the usual."""
    if isinstance(value, list) and len(value) == 2 and value[1] == "ok":
        return str(value[0])
    return _short(_text(value), 0)


def _text(value: Any) -> str:
    return report.clean(json.dumps(value, ensure_ascii=False))


def _short(text: str, at: int) -> str:
    if len(text) <= LONGEST_VALUE:
        return text
    cut = text[at : at + LONGEST_VALUE - 3]
    return ("..." if at else "") + cut + ("..." if at + len(cut) < len(text) else "")


@click.command("watch")
@click.option("--until-done", is_flag=True, help="Leave (exit 0) once every task is done.")
@notify_option
@expect_option
@json_option
@click.pass_obj
def watch_command(
    workspace: Path,
    until_done: bool,
    notify: tuple[str, ...],
    expect_rev: int | None,
    as_json: bool,
) -> None:
    """Advance the graph and stay: for decisions, edits, new work, hosts that come back.

    Jobs run detached on their hosts: leaving with ctrl+c (exit 10) leaves them running. Only one
    `run` or `watch` at a time (exit 6).

    Example: runbook watch --until-done
    """
    advance.advance(
        workspace,
        "watch",
        lambda service, stop, listen: service.watch(
            until_done=until_done, stop_event=stop, listen=listen
        ),
        expect_rev=expect_rev,
        notify=notify,
        as_json=as_json,
    )
