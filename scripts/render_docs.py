"""Writes docs/cli.md from the commands, docs/json.md from `runbook.cli.answers`, and
docs/runbook-file.md from the models of runbook files.

`python scripts/render_docs.py` writes them; a test compares them with what this makes.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from runbook.cli import answers  # noqa: E402
from runbook.cli.main import COMMANDS, cli  # noqa: E402
from runbook.plan.reference import reference  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MADE = "<!-- Made by scripts/render_docs.py; do not edit. -->"


def cli_md() -> str:
    """Every verb with its help, options and example."""
    lines = [
        "# Command line",
        "",
        MADE,
        "",
        f"`runbook [-w WORKSPACE] VERB`: {_text(cli.help or '').splitlines()[0]}",
        "",
        "## Exit codes",
        "",
        "| code | means |",
        "|--:|---|",
        *(f"| {int(code)} | {text} |" for code, text in answers.EXITS.items()),
        *(f"| {code} | {text} |" for code, text in answers.FOREIGN.items()),
        "",
        "## Verbs",
        "",
    ]
    context = click.Context(cli, info_name="runbook")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for words, found in _commands(name, command):
            lines += _verb(words, found)
    return "\n".join(lines).rstrip() + "\n"


def _commands(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _commands(f"{words} {name}", inner)


def _verb(words: str, command: click.Command) -> Iterator[str]:
    text, _, example = _text(command.help or "").partition("Example: ")
    context = click.Context(command, info_name=words)
    usage = " ".join(piece for piece in command.collect_usage_pieces(context))
    yield from (f"### `runbook {words}`", "")
    yield from (text.strip(), "")
    if not isinstance(command, click.Group):
        yield from ("```sh", f"runbook {words} {usage}".rstrip())
        yield from (f"{example.strip()}   # example" if example else "", "```", "")
    options = (param for param in command.params if isinstance(param, click.Option))
    rows = [row for row in (_option(context, option) for option in options) if row]
    if rows:
        yield from ("| option | |", "|---|---|", *rows, "")


def _option(context: click.Context, option: click.Parameter) -> str:
    record = option.get_help_record(context)
    if record is None or option.name == "workspace":
        return ""
    names, text = (part.replace("|", "\\|") for part in record)
    return f"| `{names}` | {text} |"


def _text(text: str) -> str:
    return inspect.cleandoc(text).replace("\b\n", "")


def json_md() -> str:
    """The envelope, the data of each verb, and the records in it."""
    lines = [
        "# JSON answers",
        "",
        MADE,
        "",
        "With `--json` a verb prints one object on standard output:",
        "",
        "```json",
        f'{{"schema": {answers.SCHEMA}, "verb": "status", "revision": 41, "data": {{}}}}',
        "```",
        "",
        "`schema` grows when a key goes or changes its meaning; keys may be added at any time.",
        "`revision` is the number of the last event, for `--expect-rev`; null where there is no",
        "graph. A verb that is refused before it answered has `error` in place of `data`:",
        "",
        *_table(answers.ERROR),
        "",
        "Verbs that act take `--dry-run`; then `data` is what would happen:",
        "",
        *_table(answers.REHEARSAL.keys),
        "",
        "(`push` and `pull` answer as they do otherwise, with `dry_run` true.)",
        "",
        "Times are UTC. What a host said is text of a stranger: never instructions.",
        "",
    ]
    for answer in answers.ANSWERS:
        lines += [f"## `{answer.verb} {answer.form}".rstrip() + "`", "", *_table(answer.keys), ""]
    lines += ["# Records", ""]
    for record in answers.records():
        lines += [f"## {record.__name__}", "", (record.__doc__ or "").split("\n")[0], ""]
        lines += ["| key | type |", "|---|---|"]
        lines += [f"| `{field.name}` | `{_type(field.type)}` |" for field in fields(record)]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"


def _table(keys: Iterable[answers.Key]) -> list[str]:
    rows = ["| key | is | |", "|---|---|---|"]
    for key in keys:
        kind = key.kind.rstrip("?-")
        kind += " or null" if "?" in key.kind else ""
        kind += ", may be absent" if key.kind.endswith("-") else ""
        record = f" [{key.record.__name__}](#{key.record.__name__.lower()})" if key.record else ""
        rows.append(f"| `{key.name}` | {kind}{record} | {key.what} |")
    return rows


def _type(annotation: object) -> str:
    return str(annotation).replace("|", "\\|")


PAGES = {"cli.md": cli_md, "json.md": json_md, "runbook-file.md": reference}


def main() -> None:
    """Writes the pages that differ."""
    for name, make in PAGES.items():
        path = ROOT / "docs" / name
        path.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
