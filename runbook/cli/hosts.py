"""Verbs about machines: which plays which role, its facts and key, a shell and a tunnel to it."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from runbook import report
from runbook.cli.common import (
    answer,
    dry_run_option,
    expect_option,
    json_option,
    plain,
    tell_rehearsal,
)
from runbook.cli.host_files import clean_command, get_command, put_command
from runbook.cli.terminal import ask_word
from runbook.errors import Exit, RunbookError

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.reach import Dependants
    from runbook.views import View
    from runbook.workspace import Workspace
    from state import HostBinding


@click.group("host")
def host_command() -> None:
    """Bind machines to the host roles of the runbook; look at them; reach them."""


@host_command.command("bind")
@click.argument("role")
@click.argument("target")
@click.option("-p", "-P", "--port", type=click.IntRange(1, 65535), default=22, help="SSH port.")
@click.option("--root", default="", help="Where jobs are kept on the host.")
@click.option("--work", default="", help="Where data goes on the host.")
@click.option(
    "--accept-fingerprint", default="", metavar="SHA256:...", help="Of a host key not known yet."
)
@click.option("--usd-per-hour", type=click.FloatRange(min=0), help="What an hour of it costs.")
@click.option("--ends-at", metavar="TIME", help="When its rental ends: 2026-03-09T18:00:00Z.")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def bind_command(
    workspace: Path,
    role: str,
    target: str,
    port: int,
    root: str,
    work: str,
    accept_fingerprint: str,
    usd_per_hour: float | None,
    ends_at: str | None,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Say which machine plays ROLE: `local`, or user@address, or user@address:port.

    Example: runbook host bind box local
    """
    from runbook.reach import dependants
    from runbook.service import Service

    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        before = service.snapshot()
        binding = replace(
            binding_of(role, target, port, root, work, service.workspace),
            usd_per_hour=usd_per_hour,
            ends_at=moment_of(ends_at),
        )
        if dry_run:
            service.would.append(f"meet {target}, pin its key to {role} and record its facts")
            tell_rehearsal(service, "host", as_json=as_json)
            return
        facts = service.bind(role, binding, accept_fingerprint=accept_fingerprint)
        if as_json:
            answer("host", service.store.revision(), {"host": binding, "facts": facts})
            return
    report.line(f"{role} is {target}; jobs in {binding.root}, data in {binding.work}")
    earlier = next((host for host in before.hosts if host.role == role), None)
    if earlier is not None and earlier.machine != binding.machine:
        _tell_void(dependants(before, role))


host_command.add_command(bind_command, "add")


@host_command.command("rent")
@click.argument("role")
@click.option("--usd-per-hour", type=click.FloatRange(min=0), help="What an hour of it costs.")
@click.option("--ends-at", metavar="TIME", help="When its rental ends: 2026-03-09T18:00:00Z.")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def rent_command(
    workspace: Path,
    role: str,
    usd_per_hour: float | None,
    ends_at: str | None,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Say what the machine of ROLE costs and when its rental ends. Asks no machine.

    What cannot end before that, or would cost more than the budget of the runbook, waits for a yes.

    Example: runbook host rent gpu --usd-per-hour 18 --ends-at 2026-03-09T18:00:00Z
    """
    from runbook.service import Service

    if usd_per_hour is None and ends_at is None:
        raise RunbookError("Nothing to keep.", hint="Give --usd-per-hour, --ends-at, or both.")
    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        binding = service.rent(role, usd_per_hour=usd_per_hour, ends_at=moment_of(ends_at))
        if dry_run:
            tell_rehearsal(service, "host", as_json=as_json)
            return
        if as_json:
            answer("host", service.store.revision(), {"host": binding})
            return
    price = "no price" if binding.usd_per_hour is None else f"${binding.usd_per_hour:,.2f} an hour"
    report.line(f"{role}: {price}, {binding.ends_at or 'no end'}")


def moment_of(text: str | None) -> str | None:
    """A time that a person gave, as it is stored."""
    from state.ids import stamp

    if text is None:
        return None
    try:
        return stamp(datetime.fromisoformat(text))
    except ValueError:
        raise RunbookError(
            f"`{text}` is no time with a zone.",
            hint="Write 2026-03-09T18:00:00Z, or +01:00 instead of Z.",
        ) from None


def binding_of(
    role: str, target: str, port: int, root: str, work: str, workspace: Workspace
) -> HostBinding:
    """The record of what was said of a machine, with what was left unsaid filled in."""
    from state import HostBinding

    if target == "local":
        return HostBinding(
            role=role,
            kind="local",
            root=root or str(workspace.private / "host"),
            work=work or str(workspace.root / "work"),
        )
    user, at, address = target.rpartition("@")
    name, colon, number = address.partition(":")
    if colon and number.isdigit():  # of an IPv6 address there is more than one colon
        address, port = name, int(number)
    address = address.removeprefix("[").removesuffix("]")  # an IPv6 address
    if not address:
        raise RunbookError(f"`{target}` names no machine.", hint="Write `local` or user@address.")
    home = root or "~/.runbook"
    return HostBinding(
        role=role,
        kind="ssh",
        address=address,
        user=user if at else "",
        port=port,
        root=home,
        work=work or f"{home}/work",
    )


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
    if as_json:
        answer("host", snapshot.revision, {"hosts": [plain(host) for host in snapshot.hosts]})
        return
    rows = [
        (
            host.role,
            host.address or "local",
            host.unreachable_since or "reachable",
            "" if host.usd_per_hour is None else f"${host.usd_per_hour:,.2f}/h",
            f"until {host.ends_at}" if host.ends_at else "",
            host.root,
        )
        for host in snapshot.hosts
    ]
    report.table(rows or [("no role is bound yet: runbook host bind ROLE local",)])


@host_command.command("probe")
@click.argument("role")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def probe_command(
    workspace: Path, role: str, expect_rev: int | None, dry_run: bool, as_json: bool
) -> None:
    """Ask a host for its facts and record them.

    Example: runbook host probe box
    """
    from runbook.service import Service

    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        if dry_run:
            service.would.append(f"ask {service.snapshot().host(role).machine} for its facts")
            tell_rehearsal(service, "host", as_json=as_json)
            return
        facts = service.probe(role)
        if as_json:
            answer("host", service.store.revision(), {"role": role, "facts": facts})
            return
        view = service.view()
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


@host_command.command("repin")
@click.argument("role")
@click.option("--fingerprint", default="", metavar="SHA256:...", help="Of the new key, compared.")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def repin_command(
    workspace: Path,
    role: str,
    fingerprint: str,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take the new key of a rebuilt machine. Shows both; a person decides. A new epoch begins.

    Example: runbook host repin box
    """
    from runbook.reach import dependants
    from runbook.service import Service

    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        if dry_run:
            machine = service.snapshot().host(role).machine
            service.would.append(f"ask {machine} for its key, and take it if a person says yes")
            tell_rehearsal(service, "host", as_json=as_json)
            return
        changed = service.shown_key(role)
        if changed is None:
            report.line(f"{role} shows the key that is pinned to it; nothing to do.")
            return
        pinned = changed.expected_fingerprint
        if not as_json:
            report.line(f"pinned: {changed.expected.split()[0]} {pinned}")
            report.line(f"shown:  {changed.found.split()[0]} {changed.fingerprint}")
        _require_yes(role, changed.fingerprint, fingerprint)
        void = dependants(service.snapshot(), role)
        binding = service.repin(role, changed.found)
        if as_json:
            data = {"host": binding, "was": pinned, "is": changed.fingerprint, "void": void}
            answer("host", service.store.revision(), data)
            return
    report.line(f"{role} is known by {changed.fingerprint} from now on; a new epoch began.")
    _tell_void(void)


def _require_yes(role: str, shown: str, given: str) -> None:
    """A person's yes: the fingerprint, typed as an option or compared at the terminal."""
    if given:
        from runbook.verbs.hosts import require_same_key

        require_same_key(role, shown, given)
        return
    question = f"Is that the key of the machine you rebuilt? Type `{role}` to take it: "
    if ask_word(question) != role:
        raise RunbookError(
            f"The key of {role} was not taken: that is for a person at a terminal.",
            hint=f"Compare it; then `runbook host repin {role}` in a terminal, or --fingerprint.",
            exit_code=Exit.NEEDS_APPROVAL,
        )


def _tell_void(void: Dependants) -> None:
    """What another machine, or another boot, takes from the graph."""
    if void.memory:
        report.line(f"Done with memory or processes of that machine: {', '.join(void.memory)}")
    if void.disk:
        report.line(f"Done with files on it: {', '.join(void.disk)}")
    if void.memory or void.disk:
        report.line("`runbook verify` looks, and turns stale what no longer holds.")


@host_command.command("forget")
@click.argument("role")
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def forget_command(
    workspace: Path, role: str, expect_rev: int | None, dry_run: bool, as_json: bool
) -> None:
    """Take the machine from ROLE. Nothing on the machine is touched.

    Example: runbook host forget box
    """
    from runbook.reach import dependants
    from runbook.service import Service

    with Service.open(workspace, expect_rev=expect_rev, dry_run=dry_run) as service:
        void = dependants(service.snapshot(), role)
        binding = service.forget(role)
        if dry_run:
            tell_rehearsal(service, "host", as_json=as_json)
            return
        if as_json:
            data = {"role": role, "was": binding, "void": void}
            answer("host", service.store.revision(), data)
            return
    report.line(
        f"{role} is no longer {binding.machine}. Bind another: runbook host bind {role} ..."
    )
    _tell_void(void)


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
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--local-port", type=click.IntRange(1, 65535), help="Default: PORT, if it is free.")
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
