"""Verbs around coding agents: the MCP server, and a person's yes to what an agent asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from runbook import report
from runbook.errors import Exit, RunbookError
from runbook.workspace import default_actor
from state.telling import told_state

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.service import Service


@click.command("mcp")
@click.option("--read-only", is_flag=True, help="Only the tools that look.")
@click.option("--actor", help="Who acts, as recorded with every event. Default: agent:USER@HOST.")
@click.pass_obj
def mcp_command(workspace: Path, read_only: bool, actor: str | None) -> None:
    """Serve this workspace to a coding agent, as an MCP server over stdio.

    An agent's client starts it; for most clients the line to configure is the example below.

    Example: runbook mcp -w ~/runs/drafter
    """
    try:
        from runbook.mcp.server import build_server
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise RunbookError(
            "The MCP SDK is not installed.", hint="Install this package with its `mcp` extra."
        ) from error
    named = actor or os.environ.get("RUNBOOK_ACTOR") or f"agent:{default_actor()}"
    build_server(workspace, actor=named, read_only=read_only).run("stdio")


@click.command("confirm")
@click.argument("request", required=False)
@click.option("--runbook", "whole", is_flag=True, help="Say yes to the runbook as it is loaded.")
@click.pass_obj
def confirm_command(workspace: Path, request: str | None, whole: bool) -> None:
    """Say yes or no, as a person at a terminal, to what an agent asked for.

    Without REQUEST it lists what waits. The answer is read from the terminal itself, not from
    standard input.

    Example: runbook confirm c41
    """
    from runbook.service import Service

    if whole and request:
        raise click.UsageError("Name a request or --runbook, not both.")
    with Service.open(workspace) as service:
        if whole:
            _confirm_runbook(service)
        elif request:
            _confirm_request(service, request)
        else:
            _list_requests(service)


def _list_requests(service: Service) -> None:
    from runbook.requests import open_requests

    rows = open_requests(service.snapshot())
    for row in rows:
        report.line(
            f"{row.id}  {row.verb} {row.task}  "
            f"asked by {report.clean(row.asked_by)}: {report.clean(row.reason)}"
        )
    if not rows:
        report.line("Nothing waits for a yes.")


def _confirm_request(service: Service, request_id: str) -> None:
    from runbook.requests import find_request

    snapshot = service.snapshot()
    row = find_request(snapshot, request_id)
    task = snapshot.task(row.task)
    attempt = snapshot.latest_attempt(row.task)
    where = f", attempt {attempt.number} on {attempt.host}" if attempt else ""
    answer = ask_person(
        f"{report.clean(row.asked_by)} asks: {row.verb} `{row.task}` ({told_state(task)}{where})\n"
        f"reason given: {report.clean(row.reason) or 'none'}\n"
        "Type the task's name to say yes, `no` to take it off the list: "
    )
    if answer == "no" != row.task:
        service.decline(row.id)
        report.line("Declined. It can be asked for again.")
        return
    if answer != row.task:
        raise RunbookError("Not confirmed.", hint="", exit_code=Exit.NEEDS_APPROVAL)
    report.line(f"token: {service.confirm(row.id)}")
    report.line("It works once, for this attempt of this task. Give it to whoever asked.")


def _confirm_runbook(service: Service) -> None:
    snapshot = service.snapshot()
    tasks = [task for task in snapshot.tasks if not task.removed]
    name = snapshot.meta.name
    answer = ask_person(
        f"{snapshot.meta.title or name}: {len(tasks)} tasks, from {snapshot.meta.runbook_path}\n"
        "`runbook run --dry-run` and `runbook status TASK` show what each would run.\n"
        f"Type the runbook's name ({name}) to let agents run it: "
    )
    if answer != name:
        raise RunbookError("Not approved.", hint="", exit_code=Exit.NEEDS_APPROVAL)
    report.line(f"approved: {service.approve_runbook()[:16]}")


def ask_person(question: str) -> str:
    """One line from the controlling terminal, whatever standard input is.

    Raises:
        RunbookError: there is no terminal.
    """
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:  # noqa: PTH123 (a device)
            terminal.write(question.encode())
            line = b""
            while not line.endswith(b"\n"):
                got = terminal.read(1)
                if not got:
                    break
                line += got
    except OSError as error:
        raise RunbookError(
            "This needs a person at a terminal, and there is none.",
            hint="Run it in a terminal of your own.",
            exit_code=Exit.NEEDS_APPROVAL,
        ) from error
    return line.decode(errors="replace").strip()
