"""Verbs about machines: which plays which role, its facts and key, a shell and a tunnel to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from runbook import report
from runbook.cli.common import answer, json_option, plain
from runbook.errors import RunbookError

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.workspace import Workspace
    from state import HostBinding


@click.group("host")
def host_command() -> None:
    """Bind machines to the host roles of the runbook, and look at them."""


@host_command.command("bind")
@click.argument("role")
@click.argument("target")
@click.option("-P", "--port", type=click.IntRange(1, 65535), default=22, help="SSH port.")
@click.option("--root", default="", help="Where jobs are kept on the host.")
@click.option("--work", default="", help="Where data goes on the host.")
@click.option(
    "--accept-fingerprint", default="", metavar="SHA256:...", help="Of a host key not known yet."
)
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
    as_json: bool,
) -> None:
    """Say which machine plays ROLE: `local`, or user@address.

    Example: runbook host bind box local
    """
    from runbook.service import Service

    with Service.open(workspace) as service:
        binding = _binding(role, target, port, root, work, service.workspace)
        facts = service.bind(role, binding, accept_fingerprint=accept_fingerprint)
        if as_json:
            answer("host", service.store.revision(), {"host": binding, "facts": facts})
        else:
            report.line(f"{role} is {target}; jobs in {binding.root}, data in {binding.work}")


def _binding(
    role: str, target: str, port: int, root: str, work: str, workspace: Workspace
) -> HostBinding:
    from state import HostBinding

    if target == "local":
        return HostBinding(
            role=role,
            kind="local",
            root=root or str(workspace.private / "host"),
            work=work or str(workspace.root / "work"),
        )
    user, at, address = target.rpartition("@")
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
        (host.role, host.address or "local", host.unreachable_since or "reachable", host.root)
        for host in snapshot.hosts
    ]
    report.table(rows or [("no role is bound yet: runbook host bind ROLE local",)])


@host_command.command("probe")
@click.argument("role")
@json_option
@click.pass_obj
def probe_command(workspace: Path, role: str, as_json: bool) -> None:
    """Ask a host for its facts and record them.

    Example: runbook host probe box
    """
    from runbook.service import Service

    with Service.open(workspace) as service:
        facts = service.probe(role)
        if as_json:
            answer("host", service.store.revision(), {"role": role, "facts": facts})
            return
    rows: list[tuple[str, ...]] = [(key, _fact(value)) for key, value in sorted(facts.items())]
    report.table(rows)


def _fact(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return report.clean(text if len(text) <= 120 else text[:117] + "...")
