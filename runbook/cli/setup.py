"""Verbs that set things up: workspaces, runbook files, hosts."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook import report
from runbook.cli.common import (
    answer,
    dry_run_option,
    expect_option,
    following,
    json_option,
    plain,
    tell_next,
)
from runbook.errors import RunbookError
from runbook.rented import where
from runbook.workspace import RUNBOOK_FILE, Workspace, find_workspace

if TYPE_CHECKING:
    from runbook.plan import Runbook


@click.command("init")
@click.argument("source", required=False)
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="The workspace. Default: .")
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option(
    "--agents", is_flag=True, help="Also tell coding agents, in AGENTS.md, how to resume."
)
@dry_run_option
@expect_option
@json_option
@click.pass_obj
def init_command(
    workspace: Path,
    source: str | None,
    folder: Path | None,
    params: tuple[str, ...],
    agents: bool,
    expect_rev: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a workspace from SOURCE: a runbook file or the name of a bundled runbook.

    Run again, it takes over an edited runbook.yaml: done work stays done, and what changed
    turns stale for you to decide.

    Example: runbook init demo --dir demo
    """
    from runbook.plan import load_runbook
    from runbook.service import Service
    from state.mirror import write_file

    target = Workspace((folder or workspace).absolute())
    text = _source_text(source, target)
    given = {**kept_params(target), **given_params(params)}
    exists = target.runbook_file.exists()
    _check_first(text, str(target.runbook_file) if exists or not source else source, given)
    if dry_run:
        _tell_init(target, text, given, as_json=as_json)
        return
    target.root.mkdir(parents=True, exist_ok=True)
    if not target.runbook_file.exists():
        target.runbook_file.write_text(text, encoding="utf-8")
    runbook = load_runbook(target.runbook_file, given)
    with Service.create(target.root, runbook, expect_rev=expect_rev) as service:
        write_file(target.private / "params.json", json.dumps(given, sort_keys=True).encode())
        snapshot = service.snapshot()
        bound = {host.role for host in snapshot.hosts}
        revision = service.store.revision()
        report.choose(folder or workspace)
        step = following(service.view())
    if agents:
        from runbook.agents_file import write_section

        write_section(target.root)
    if as_json:
        answer("init", revision, {"workspace": str(target.root), "tasks": len(runbook.tasks)})
        return
    report.line(f"{target.root}: {runbook.title} ({_tasks(runbook)})")
    missing = [role for role in runbook.hosts if role not in bound]
    for role in missing:
        bind = f"runbook host bind {role} {where(snapshot, role)}"
        report.line(report.located(f"Bind a machine to `{role}`: {bind}"))
    if not missing and step.command:
        tell_next(step)


def _tell_init(target: Workspace, text: str, params: dict[str, str], *, as_json: bool) -> None:
    """What would be made; of a workspace that is there, `plan` tells what would change."""
    from runbook.plan import load_text

    runbook = load_text(text, path=str(target.runbook_file), params=params)
    would = [f"make {target.root} with {_tasks(runbook)} of {runbook.title!r}"]
    if target.database.exists():
        would = [f"take {target.runbook_file} over as it is now: `runbook plan` tells what changes"]
    if as_json:
        answer("init", None, {"dry_run": True, "would": would, "events": []})
    else:
        report.line(f"would {report.clean(would[0])}")


def _tasks(runbook: Runbook) -> str:
    return f"{len(runbook.tasks)} task{'' if len(runbook.tasks) == 1 else 's'}"


def _source_text(source: str | None, target: Workspace) -> str:
    """The runbook to load: the workspace's own where there is one, else SOURCE."""
    if not target.runbook_file.exists():
        if source is None:
            hint = f"Bundled runbooks: {', '.join(bundled())}. Try `runbook init demo --dir demo`."
            raise RunbookError(
                f"There is no {RUNBOOK_FILE} in {target.root} and no SOURCE was given.", hint=hint
            )
        return _read_source(source)
    from runbook.plan import read_file

    own = read_file(target.runbook_file)
    if source is not None and _read_source(source) != own:
        raise RunbookError(
            f"{target.root} has another {RUNBOOK_FILE} already; {source} was not used.",
            hint=f"Take over edits of it with `runbook init --dir {target.root}`.",
        )
    return own


def _read_source(source: str) -> str:
    from runbook.plan import read_file

    if Path(source).is_file():
        return read_file(source)
    if source in bundled():
        return (files("runbook") / "library" / f"{source}.yaml").read_text(encoding="utf-8")
    raise RunbookError(
        f"`{source}` is neither a file nor a bundled runbook.",
        hint=f"Bundled runbooks: {', '.join(bundled())}.",
    )


def bundled() -> list[str]:
    """Names of the runbooks that come with the package."""
    folder = files("runbook") / "library"
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def given_params(pairs: tuple[str, ...]) -> dict[str, str]:
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise RunbookError(f"-p {pair}: no `=` in it.", hint="Write -p NAME=VALUE.")
        given[name] = value
    return given


def kept_params(workspace: Workspace) -> dict[str, str]:
    """Parameters that this workspace was made with: a later `init` need not repeat them."""
    kept = workspace.private / "params.json"
    with suppress(FileNotFoundError):
        try:
            stored = json.loads(kept.read_bytes())
        except ValueError:
            stored = None
        if isinstance(stored, dict):
            return stored
        raise RunbookError(
            f"{kept} is damaged: it does not hold the parameters.",
            hint="Remove it, and give them all again: runbook init -p NAME=VALUE ...",
        )
    return {}


def _check_first(text: str, path: str, params: dict[str, str]) -> None:
    """Refuses a wrong file before anything is written."""
    from runbook.plan import PlanError, load_text

    try:
        load_text(text, path=path, params=params)
    except PlanError as error:
        raise RunbookError(str(error), hint=error.hint) from error


@click.command("validate")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-p", "--param", "params", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@json_option
@click.pass_obj
def validate_command(
    workspace: Path, file: Path | None, params: tuple[str, ...], as_json: bool
) -> None:
    """Check a runbook file, or a bundled one by its name; every problem with its line and column.

    Example: runbook validate runbook.yaml
    """
    from runbook.plan import PlanError

    own = None if file is not None else find_workspace(workspace)
    path = own.runbook_file if own else file
    assert path is not None
    if file is not None and not file.is_file() and str(file) in bundled():
        path = Path(str(files("runbook") / "library" / f"{file}.yaml"))
    try:
        kept = kept_params(own) if own else {}
        runbook = _load(path, {**kept, **given_params(params)})
    except PlanError as error:
        if as_json:
            answer("validate", None, {"valid": False, "problems": plain(error.problems)})
            sys.exit(2)
        raise RunbookError(str(error), hint=error.hint) from error
    if as_json:
        answer("validate", None, {"valid": True, "tasks": [task.id for task in runbook.tasks]})
    else:
        report.line(f"{path}: valid, {_tasks(runbook)}")


def _load(path: Path, params: dict[str, str]) -> Runbook:
    from runbook.plan import load_runbook

    return load_runbook(path, params)


@click.command("schema")
def schema_command() -> None:
    """Print the JSON Schema of runbook files, for editors.

    Example: runbook schema > runbook.schema.json
    """
    from runbook.plan import json_schema

    report.json_line(json_schema())


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete verbs and options; put it where the shell reads it.

    Example: runbook completion bash > ~/.local/share/bash-completion/completions/runbook
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    found = kind(ctx.find_root().command, {}, "runbook", "_RUNBOOK_COMPLETE")
    report.line(found.source_template % found.source_vars())
