"""Verbs between people and machines: claim, release, doc, push, pull."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runbook import report
from runbook.cli.acting import Acting, acting
from runbook.cli.common import (
    F,
    answer,
    dry_run_option,
    expect_option,
    json_option,
)
from runbook.errors import RunbookError
from runbook.reader import Reader
from runbook.units import parse_duration
from runbook.workspace import Workspace, default_actor

if TYPE_CHECKING:
    from runbook.sharing.pull import Offer, Pulled


@click.command("claim")
@click.argument("subject", metavar="TASK|run")
@click.option("--for", "length", default="30m", metavar="TIME", help="How long. Default: 30m.")
@click.option("--reason", default="", help="What for; others see it.")
@click.option("--take-over", is_flag=True, help="Although somebody else has it; say why.")
@acting("claim")
def claim_command(call: Acting, subject: str, length: str, reason: str, take_over: bool) -> None:
    """Keep a task, or the whole run, for yourself; others' verbs on it are refused (exit 6).

    Again by the same actor ($RUNBOOK_ACTOR, or user@machine), it begins anew.

    Example: runbook claim train --for 2h --reason "watching the loss"
    """
    with call.open() as service:
        claim = service.claim(subject, for_s=_seconds(length), reason=reason, take_over=take_over)
        said = f"{subject} is yours ({claim.holder}) for {report.seconds(claim.for_s)}"
        call.answer(service, {"claim": claim}, said)


def _seconds(text: str) -> float:
    try:
        found = parse_duration(text)
    except ValueError as error:
        said = f"--for {text}: that is no duration."
        raise RunbookError(said, hint="Write 90s, 30m or 2h.") from error
    if found <= 0:
        raise RunbookError(f"--for {text}: a claim must last.", hint="Write 90s, 30m or 2h.")
    return found


@click.command("release")
@click.argument("subject", metavar="TASK|run")
@acting("release")
def release_command(call: Acting, subject: str) -> None:
    """Give a claim back. Done twice, it does no harm.

    Example: runbook release train
    """
    with call.open() as service:
        given = service.release(subject)
        said = f"{subject} is free" + ("" if given else ": nobody had it")
        call.answer(service, {"subject": subject, "released": given}, said)


@click.group("doc")
def doc_command() -> None:
    """Documents that whoever takes over must read."""


@doc_command.command("add")
@click.argument("path")
@click.option("--title", default="", help="What it is, for people.")
@acting("doc")
def doc_add_command(call: Acting, path: str, title: str) -> None:
    """List a document to re-read; listed again, its present content counts as known.

    Example: runbook doc add notes/plan.md --title "What we decided and why"
    """
    with call.open() as service:
        document = service.add_document(path, title=title)
        said = f"{document.path}: sha256 {document.sha256[:12]}, {document.size} bytes"
        call.answer(service, {"document": document}, said)


@doc_command.command("remove")
@click.argument("path")
@acting("doc")
def doc_remove_command(call: Acting, path: str) -> None:
    """Take a document off the list. The file stays.

    Example: runbook doc remove notes/plan.md
    """
    with call.open() as service:
        service.remove_document(path)
        call.answer(service, {"path": path}, f"{path} is no longer listed")


@doc_command.command("list")
@json_option
@click.pass_obj
def doc_list_command(workspace: Path, as_json: bool) -> None:
    """Show the documents to re-read, and which changed since they were listed.

    Example: runbook doc list
    """
    with Reader.open(workspace) as reader:
        view = reader.view()
    documents = view.snapshot.documents
    if as_json:
        rows = [{"document": one, "state": view.documents[one.path]} for one in documents]
        answer("doc", view.snapshot.revision, {"documents": rows})
        return
    table = [
        (view.documents[one.path], one.sha256[:12], report.clean(one.path), report.clean(one.title))
        for one in documents
    ]
    report.table(table or [("nothing is listed yet: runbook doc add PATH",)])


def place_options(function: F) -> F:
    """What an S3-compatible store needs to be found; remembered in the workspace."""
    for decorate in (
        click.option(
            "--addressing",
            type=click.Choice(["auto", "path", "virtual"]),
            help="How the bucket is written into the address.",
        ),
        click.option("--region", envvar="RUNBOOK_S3_REGION", help="Of the store."),
        click.option("--endpoint-url", envvar="RUNBOOK_S3_ENDPOINT", help="Of another than AWS."),
    ):
        function = decorate(function)
    return function


@click.command("push")
@click.argument("target", required=False, metavar="[URL|FILE]")
@place_options
@click.option(
    "--over", type=int, metavar="REVISION", help="Replace that revision of another history."
)
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def push_command(
    workspace: Path,
    target: str | None,
    endpoint_url: str | None,
    region: str | None,
    addressing: str | None,
    over: int | None,
    dry_run: bool,
    expect_rev: int | None,
    as_json: bool,
) -> None:
    """Put the state into a file or an S3 object, for another machine or for safety.

    A stale writer is refused (exit 6): what lies there must be a past of this state. Without an
    address, the last one is used.

    Example: runbook push s3://my-bucket/runs/drafter/
    """
    from runbook.service import Service
    from runbook.sharing.place import choose

    options = {"endpoint": endpoint_url, "region": region, "addressing": addressing}
    with Service.open(workspace, expect_rev=expect_rev) as service:
        place = choose(target, options, service.workspace)
        pushed = service.push(place, over=over, dry_run=dry_run)
    if as_json:
        answer("push", pushed.revision, {"pushed": pushed, "dry_run": dry_run})
        return
    if pushed.kept:
        report.line(f"{pushed.kept}: keeps revision {pushed.replaced}, which was replaced")
    size = report.size(pushed.bytes)
    if dry_run:
        report.line(f"would write revision {pushed.revision} ({size}) to {pushed.where}")
    elif pushed.written:
        report.line(f"{pushed.where}: revision {pushed.revision} ({size})")
    else:
        report.line(f"{pushed.where} has revision {pushed.revision} already")


@click.command("pull")
@click.argument("source", required=False, metavar="[URL|FILE]")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="The workspace to make.")
@click.option("--trust", metavar="DIGEST", default="", help="Of the commands and keys you read.")
@place_options
@dry_run_option
@json_option
@click.pass_obj
def pull_command(
    workspace: Path,
    source: str | None,
    folder: Path | None,
    trust: str,
    endpoint_url: str | None,
    region: str | None,
    addressing: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Take a pushed state over: into a new workspace, or into one that is behind.

    New commands and host keys are shown before their first use and need your yes, at the
    terminal or by --trust. A state that went another way is never overwritten (exit 6).

    Example: runbook pull s3://my-bucket/runs/drafter/ --dir drafter
    """
    from runbook.service import Service
    from runbook.sharing.place import choose
    from runbook.sharing.pull import pull

    target = _target(workspace, folder)
    options = {"endpoint": endpoint_url, "region": region, "addressing": addressing}
    place = choose(source, options, target)
    asked: list[Offer] = []

    def agree(offer: Offer) -> bool:
        asked.append(offer)
        return _agree(offer, trust=trust, as_json=as_json, dry_run=dry_run)

    pulled = pull(place, target.root, actor=default_actor(), agree=agree, dry_run=dry_run)
    revision = pulled.revision
    if not dry_run:
        with Service.open(target.root) as service:
            service.write_progress()
            revision = service.store.revision()
    if as_json:
        offer = asked[0] if asked else None
        answer("pull", revision, {"pulled": pulled, "offer": offer, "dry_run": dry_run})
    else:
        _say_pulled(pulled, dry_run=dry_run)


def _target(workspace: Path, folder: Path | None) -> Workspace:
    from runbook.errors import NoWorkspace
    from runbook.workspace import find_workspace

    if folder is not None:
        return Workspace(folder.resolve())
    try:
        return find_workspace(workspace)
    except NoWorkspace:
        return Workspace(workspace.resolve())


def _agree(offer: Offer, *, trust: str, as_json: bool, dry_run: bool) -> bool:
    """A person's yes: given by the digest of what they read, or at this terminal."""
    if trust:
        if trust != offer.contents.digest:
            raise RunbookError(
                f"--trust {trust}: what is there has the digest {offer.contents.digest}.",
                hint="Read it again: pull without --trust shows it.",
            )
        return True
    if as_json and not dry_run:
        answer("pull", offer.revision, {"pulled": None, "offer": offer, "dry_run": False})
        return False
    if not as_json:
        _show(offer)
    if dry_run:
        return True
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return terminal and click.confirm("Take it over?", default=False)


def _show(offer: Offer) -> None:
    report.line(
        f"{report.clean(offer.title)}: revision {offer.revision} by {report.clean(offer.author)}, "
        f"{offer.age}, from {offer.where}"
    )
    tasks, done = offer.contents.tasks, offer.contents.done
    coming = {name: lines for name, lines in tasks.items() if name not in done}
    over = {name: lines for name, lines in tasks.items() if name in done}
    for title, rows in (
        ("Machines, with the keys that would be trusted", _pairs(offer.contents.hosts)),
        ("Secrets, and where this machine would take them from", _pairs(offer.contents.secrets)),
        ("What would run, as tasks become ready", _commands(coming)),
        ("Done already; run only when somebody asks for it", _commands(over)),
    ):
        if rows:
            report.line(f"\n{title}")
            report.table(rows)
    report.line(f"\nDigest of all of this: {offer.contents.digest}")


def _pairs(found: dict[str, str]) -> list[tuple[str, ...]]:
    return [(f"  {report.clean(key)}", report.clean(value)) for key, value in found.items()]


def _commands(tasks: dict[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, lines in tasks.items():
        rows += [
            (f"  {report.clean(name)}" if not i else "", report.clean(x))
            for i, x in enumerate(lines)
        ]
    return rows


def _say_pulled(pulled: Pulled, *, dry_run: bool) -> None:
    words: dict[str, Any] = {
        "made": f"{pulled.workspace} is made, at revision {pulled.revision}",
        "forwarded": f"{pulled.workspace} is at revision {pulled.revision} by {pulled.author}",
        "same": f"{pulled.workspace} has revision {pulled.revision} already",
        "ahead": f"{pulled.workspace} is further: revision {pulled.revision}; `runbook push` it",
    }
    report.line(("would be so: " if dry_run else "") + words[pulled.change])
    for kept in pulled.kept:
        report.line(f"left as it is: {kept}")
    if pulled.change in ("made", "forwarded") and not dry_run:
        report.choose(Path(pulled.workspace))
        report.line(f"Next: {report.located('runbook next')}")
