"""Verbs about what lies on a machine: files that go there and come back, and old jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook import report
from runbook.cli.acting import Acting, acting
from runbook.cli.common import Number, answer, json_option
from runbook.units import parse_duration, show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote.transfer import Progress, Report
    from runbook.service import Service

KEEP = 20
OLD = "7d"


@click.command("put")
@click.argument("role")
@click.argument("local", type=click.Path(exists=True, path_type=Path))
@click.argument("remote")
@json_option
@click.pass_obj
def put_command(workspace: Path, role: str, local: Path, remote: str, as_json: bool) -> None:
    """Send a file or a folder to exactly the path REMOTE; the same command goes on after a cut.

    Example: runbook host put box ./prompts.jsonl /data/prompts.jsonl
    """
    _transfer(workspace, role, lambda s, tell: s.put(role, local, remote, tell), as_json)


@click.command("get")
@click.argument("role")
@click.argument("remote")
@click.argument("local", type=click.Path(path_type=Path))
@json_option
@click.pass_obj
def get_command(workspace: Path, role: str, remote: str, local: Path, as_json: bool) -> None:
    """Fetch a file or a folder to exactly the path LOCAL; the same command goes on after a cut.

    Example: runbook host get box /data/eval.json ./eval.json
    """
    _transfer(workspace, role, lambda s, tell: s.get(role, remote, local, tell), as_json)


def _transfer(
    workspace: Path,
    role: str,
    move: Callable[[Service, Callable[[Progress], None]], Report],
    as_json: bool,
) -> None:
    from runbook.service import Service

    shows = sys.stderr.isatty() and not as_json
    with Service.open(workspace) as service:
        done = move(service, _show if shows else lambda _: None)
        if shows:
            click.echo("\r\x1b[K", nl=False, err=True)
        if as_json:
            answer("host", service.store.revision(), {"role": role, "report": done})
            return
    report.line(_done(done))


def _done(done: Report) -> str:
    files = "1 file" if done.files == 1 else f"{done.files} files"
    said = f"{files}, {show_bytes(done.bytes)}, equal by sha256"
    if not done.sent:
        return f"{said}; all of it was there already ({done.seconds:.1f} s)"
    rate = show_bytes(int(done.sent / done.seconds)) if done.seconds else "0 B"
    cuts = f", cut {done.cuts} times" if done.cuts else ""
    return f"{said}; {show_bytes(done.sent)} travelled in {done.seconds:.1f} s ({rate}/s{cuts})"


def _show(progress: Progress) -> None:
    share = 100 * progress.done / progress.total if progress.total else 100.0
    left = f", {progress.eta_s:.0f} s left" if progress.eta_s is not None else ""
    click.echo(
        f"\r\x1b[K{progress.phase} {share:.0f} % of {show_bytes(progress.total)}"
        f" at {show_bytes(int(progress.rate))}/s{left}",
        nl=False,
        err=True,
    )


@click.command("clean")
@click.argument("role")
@click.option("--keep", type=Number(min=0), default=KEEP, help="Newest jobs left whole.")
@click.option("--older-than", default=OLD, help="Only jobs that ended so long ago: 12h, 7d.")
@acting("host")
def clean_command(call: Acting, role: str, keep: int, older_than: str) -> None:
    """Shrink old jobs on a machine to their outcome and the ends of their logs.

    Only jobs whose outcome is recorded here; nothing that runs, and nothing that a payload made.

    Example: runbook host clean box --older-than 2d
    """
    try:
        seconds = parse_duration(older_than)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--older-than") from None
    with call.open() as service:
        shrunk = service.clean(role, keep=keep, older_than_s=seconds)
        freed = sum(one.freed_bytes for one in shrunk)
        said = [f"{len(shrunk)} jobs shrunk, {show_bytes(freed)} freed on {role}"]
        said += [
            f"  {one.attempt} keeps what its payload made: {', '.join(one.left)}"
            for one in shrunk
            if one.left
        ]
        call.answer(service, {"role": role, "shrunk": shrunk}, *said)
