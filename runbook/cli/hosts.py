"""Verbs about the machine behind a role: its facts, a shell and a tunnel to it, a drill."""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from runbook import report
from runbook.cli.acting import Acting, acting
from runbook.cli.common import (
    Number,
    answer,
    json_option,
    plain,
)
from runbook.cli.host_binding import bind_command, forget_command, rent_command, repin_command
from runbook.cli.host_files import clean_command, get_command, put_command
from runbook.errors import Exit
from runbook.reasons import wrong_answer

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.views import View
    from state import HostBinding, Snapshot


@click.group("host")
def host_command() -> None:
    """Bind machines to the host roles of the runbook; look at them; reach them."""


host_command.add_command(bind_command)
host_command.add_command(bind_command, "add")
host_command.add_command(rent_command)
host_command.add_command(repin_command)
host_command.add_command(forget_command)
host_command.add_command(put_command)
host_command.add_command(get_command)
host_command.add_command(clean_command)


@host_command.command("list")
@json_option
@click.pass_obj
def list_command(workspace: Path, as_json: bool) -> None:
    """Show the roles and the machines behind them.

    Example: runbook host list
    """
    from runbook.reader import Reader

    with Reader.open(workspace) as reader:
        snapshot = reader.snapshot()
    now = datetime.now(UTC)
    if as_json:
        answer("host", snapshot.revision, {"hosts": [plain(host) for host in snapshot.hosts]})
        return
    rows = [
        (
            host.role,
            host.place,
            f"with {host.identity_file}" if host.identity_file else "",
            _answers(snapshot, host, now),
            "" if host.usd_per_hour is None else f"${host.usd_per_hour:,.2f}/h",
            f"until {host.ends_at}" if host.ends_at else "",
            host.root,
        )
        for host in snapshot.hosts
    ]
    report.table(rows or [("no role is bound yet: runbook host bind ROLE local",)])


def _answers(snapshot: Snapshot, host: HostBinding, now: datetime) -> str:
    """Whether it did when it was last asked, and for how long it has not."""
    if host.unreachable_since is None:
        return "reachable"
    since = datetime.fromisoformat(host.unreachable_since)
    day = "" if since.date() == now.date() else f"{since:%Y-%m-%d} "
    does = "answers wrongly" if wrong_answer(snapshot, host.role) else "silent"
    return f"{does} since {day}{since:%H:%M}Z ({report.seconds((now - since).total_seconds())})"


@host_command.command("probe")
@click.argument("role")
@acting("host")
def probe_command(call: Acting, role: str) -> None:
    """Ask a host for its facts and record them.

    Example: runbook host probe box
    """
    with call.open() as service:
        if call.dry_run:
            machine = service.snapshot().host(role).machine
            call.rehearsed(service, f"ask {machine} for its facts")
            return
        facts = service.probe(role)
        call.answer(service, {"role": role, "facts": facts})
        view = service.view()
    if not call.as_json:
        _print_facts(view, role)


def _print_facts(view: View, role: str) -> None:
    """In the words of the UI's hosts place."""
    from runbook.slow_folders import slow_rows
    from runbook.tui import glyphs
    from runbook.tui.describe import Looks
    from runbook.tui.host_model import facts_of
    from runbook.tui.inks import colourless

    looks = Looks(glyphs=glyphs.choose(os.environ), inks=colourless())
    host = view.snapshot.host(role)
    told = facts_of(host, view, looks, now=datetime.now(UTC), width=report.WIDTH - 10)
    rows = [
        (label if number == 0 else "", line.plain)
        for label, lines in told
        for number, line in enumerate(lines)
    ]
    report.table(rows, width=report.WIDTH)
    for slow in slow_rows(host.facts):
        report.line(f"warning: {report.clean(str(slow))}")


@host_command.command("shell")
@click.argument("role")
@click.option("-c", "command", default="", help="Run this instead of a shell.")
@click.pass_obj
def shell_command(workspace: Path, role: str, command: str) -> None:
    """Open a shell on the machine of ROLE, where its jobs are; with your own ssh.

    Example: runbook host shell box
    """
    from runbook.engine.hosts import bound
    from runbook.reach import shell
    from runbook.reader import Reader

    with Reader.open(workspace) as reader:
        reader.require_role(role)
        binding = bound(reader.snapshot(), role)
        argv = shell(binding, reader.workspace, command=command)
    os.execvp(argv[0], argv)  # noqa: S606 (the user's own shell: its signals, its exit code)


@host_command.command("tunnel")
@click.argument("role")
@click.argument("port", type=Number(1, 65535))
@click.option("--local-port", type=Number(1, 65535), help="Default: PORT, if it is free.")
@click.pass_obj
def tunnel_command(workspace: Path, role: str, port: int, local_port: int | None) -> None:
    """Bring PORT of the machine of ROLE to this one, until ctrl+c. Outlives lost connections.

    Example: runbook host tunnel box 30000
    """
    from remote.tunnel import Tunnel
    from runbook.service import Service

    with Service.open(workspace) as service:
        host = service.machine(role)
    try:
        tunnel = Tunnel(
            host.transport,
            port,
            local_port=local_port,
            said=lambda text: report.line(report.clean(text)),
        )
        report.line(f"{tunnel.url} is port {port} of {role} ({host.label}). Leave with ctrl+c.")
        tunnel.serve(threading.Event())
    except KeyboardInterrupt:
        report.line("The tunnel is closed; what runs on the host runs on.")
    finally:
        host.close()


@host_command.command("drill")
@click.argument("role")
@json_option
@click.pass_obj
def drill_command(workspace: Path, role: str, as_json: bool) -> None:
    """Rehearse the loss of the connection on the machine of ROLE, with harmless jobs.

    Runs one, closes the connection in the middle, adopts it again, verifies its exit code and every
    byte of its log; stops another one and verifies that nothing is left. Exit 4 when something did
    not survive. Nothing of the graph is touched. Also: runbook doctor --drill ROLE.

    Example: runbook host drill box
    """
    rehearse(workspace, role, as_json=as_json)


def rehearse(workspace: Path, role: str, *, as_json: bool) -> None:
    """Runs the drill, tells each step as it is done, and leaves with its exit code."""
    from runbook.drill import Drill
    from runbook.service import Service

    steps = []
    with Service.open(workspace) as service:
        for step in Drill(lambda: service.machine(role)).run():
            steps.append(step)
            if not as_json:
                report.line(f"{'✓' if step.ok else '✗'} {step.name:<13} {report.clean(step.found)}")
        revision = service.store.revision()
    survived = all(step.ok for step in steps)
    if as_json:
        answer("host", revision, {"role": role, "survived": survived, "steps": steps})
    else:
        report.line(
            f"{role}: " + ("all of it survived" if survived else "SOMETHING DID NOT SURVIVE")
        )
    sys.exit(Exit.OK if survived else Exit.CHECK_FAILED)
