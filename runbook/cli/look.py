"""Verbs that show what the graph does not hold itself: an audit's files, the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from runbook import report
from runbook.cli.common import Number, answer, json_option, plain

if TYPE_CHECKING:
    from pathlib import Path


@click.command("audit")
@click.argument("task")
@click.option("--samples", is_flag=True, help="The rows that the audit kept for people.")
@json_option
@click.pass_obj
def audit_command(workspace: Path, task: str, samples: bool, as_json: bool) -> None:
    """Show what an audit found; its files are brought from the host once and kept.

    Example: runbook audit audit-train --samples
    """
    from runbook.service import Service

    with Service.open(workspace) as service:
        found = service.audit(task)
        if as_json:
            answer("audit", service.store.revision(), found)
            return
    if samples:
        for sample in found["samples"]:
            _print_sample(sample)
        return
    for gate in found["report"].get("gates", []):
        report.line(f"{'ok  ' if gate.get('passed') else 'FAIL'} {report.clean(gate['sentence'])}")
    for name, share in found["report"].get("shares", {}).items():
        if share:
            report.line(f"     {name.replace('_', ' ')}: {share:.2%} of rows")
    report.line(f"{found['report'].get('rows', 0):,} rows; the whole text: {found['path']}")


def _print_sample(sample: dict[str, Any]) -> None:
    flags = ", ".join(sample.get("flags") or []) or "plain"
    report.line(f"{report.clean(str(sample.get('id')))}  {report.clean(flags)}")
    for message in sample.get("messages") or []:
        report.line(f"  {report.clean(str(message.get('role')))}: {_cut(message.get('content'))}")
    for name in ("reasoning", "content"):
        if sample.get(name):
            report.line(f"  {name}: {_cut(sample[name])}")


def _cut(text: object) -> str:
    return report.clean(str(text))[:400]


@click.command("checkpoints")
@click.argument("task")
@json_option
@click.pass_obj
def checkpoints_command(workspace: Path, task: str, as_json: bool) -> None:
    """List the checkpoints of a training run as they lie on its host now.

    Example: runbook checkpoints train
    """
    from runbook.service import Service

    with Service.open(workspace) as service:
        found = service.checkpoints(task)
        if as_json:
            answer("checkpoints", service.store.revision(), {"checkpoints": found})
            return
    if not found:
        report.line("None yet.")
    for one in found:
        marks = ", ".join(name for name in ("latest", "best") if getattr(one, name))
        size = f"{one.size / 1e9:.2f} GB"
        report.line(f"{one.step:>8}  {size:>10}  {marks:<12}  {report.clean(one.path)}".rstrip())


@click.command("events")
@click.option("--match", default="", help="Words, or actor:NAME host:ROLE task:ID kind:KIND.")
@click.option("--last", type=Number(1), default=50, help="How many. Default: 50.")
@json_option
@click.pass_obj
def events_command(workspace: Path, match: str, last: int, as_json: bool) -> None:
    """Show what happened, oldest first: every move, check, note, by whom.

    Example: runbook events --match "task:train actor:anna"
    """
    from runbook.history import FIELDS, matching, said
    from runbook.reader import Reader

    with Reader.open(workspace) as reader:
        snapshot = reader.snapshot()
        room = last if not match else snapshot.revision
        events = reader.events(after=max(0, snapshot.revision - room), limit=room + last)
    found = list(matching(events, match, snapshot))[-last:]
    if as_json:
        answer("events", snapshot.revision, {"events": [plain(event) for event in found]})
        return
    if not found:
        fields = ", ".join(f"{name}:" for name in FIELDS)
        report.error(f"No event fits `{match}`.", f"Words, or {fields} before one.")
    report.table(
        (
            str(e.seq),
            e.at,
            report.clean(e.task or e.subject),  # nobody knows attempts and checks by their ids
            e.kind,
            report.clean(e.actor),
            report.clean(said(e)),
        )
        for e in found
    )
