"""Commands in Markdown: found, held against the parsers, and run.

A fenced `sh` block is run, block after block of a page in one folder, unless a comment above it
says why not: `<!-- not run: needs a GPU -->`. `<!-- first: COMMAND -->` above a block is run before
it, `<!-- file: NAME -->` above any block writes it to a file there. A line that ends in
`# exit N` must end so. Whether run or not, every command line is parsed.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runbook.cli.main import cli

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"((?:^<!-- [^\n]*? -->\n+)*)^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"^<!-- (not run|first|file): (.*?) -->$", re.MULTILINE)
SPAN = re.compile(r"`((?:python3? -m )?(?:runbook|dflash|make)(?: [^`\n]+)?)`")
EXIT = re.compile(r"# exit (\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block with what the comments above it say."""

    text: str
    language: str
    first: tuple[str, ...]
    file: str
    not_run: str


def blocks(markdown: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for notes, language, text in FENCE.findall(markdown):
        said = NOTE.findall(notes)
        yield Block(
            language=language,
            text=text,
            not_run=next((what for kind, what in said if kind == "not run"), ""),
            first=tuple(what for kind, what in said if kind == "first"),
            file=next((what for kind, what in said if kind == "file"), ""),
        )


def lines(block: Block) -> list[str]:
    """The command lines of a block; continued ones in one piece."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]


def script(page: list[Block]) -> str:
    """A shell script that runs the blocks of a page and stops at the first surprise."""
    rows = []
    for block in page:
        if block.file:
            rows.append(f"cat > {block.file} <<'END_OF_FILE'\n{block.text}END_OF_FILE")
        if block.language == "sh" and not block.not_run:
            rows += [checked(line) for line in (*block.first, *lines(block))]
    return "\n".join(rows) + "\n"


def checked(line: str) -> str:
    wanted = EXIT.search(line)
    code = wanted.group(1) if wanted else "0"
    told = shlex.quote(f"$ {line}")
    return f"printf '%s\\n' {told} >&2\n{line}\nended=$?; [ $ended = {code} ] || exit 97"


def problems(markdown: str) -> list[str]:
    """Commands of a page that no parser of ours takes."""
    found = []
    for block in blocks(markdown):
        if block.language == "sh":
            for line in lines(block):
                words = shlex.split(line, comments=True)
                found += [f"{line.strip()}: {said}" for said in wrong(words)]
    text = FENCE.sub("", markdown)
    for span in SPAN.findall(text):
        found += [f"`{span}`: {said}" for said in wrong(split(span))]
    return found


def split(span: str) -> list[str]:
    """The words of a command in running text; where it becomes notation, it ends."""
    plain = re.split(r"\.\.\.(?!\")|[\[{|(]", span)[0]
    try:
        return shlex.split(plain)
    except ValueError:
        return plain.split()


def wrong(words: list[str]) -> list[str]:
    """What is wrong with a command line: verbs, options, too many words. Nothing is run."""
    for at, word in enumerate(words):
        if word in ("&&", "|", ";"):
            return wrong(words[:at]) + wrong(words[at + 1 :])
        if word in (">", ">>", "<"):
            return wrong(words[:at])
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:2] in (["python", "-m"], ["python3", "-m"]):
        words = words[2:]
    if not words:
        return []
    program, rest = Path(words[0]).name, words[1:]
    if program == "runbook":
        return list(wrong_verb(rest))
    if program == "dflash":
        return list(wrong_dflash(rest))
    if program == "make":
        return [f"no target {one}" for one in rest if "=" not in one and one not in targets()]
    if program in ("python", "python3"):
        return list(wrong_script(rest))
    return []


def wrong_verb(words: list[str]) -> Iterator[str]:
    command: click.Command = cli
    context = click.Context(cli, info_name="runbook")
    while True:
        if words in (["--help"], ["--version"]):
            return
        try:
            _, left, _ = command.make_parser(context).parse_args(list(words))
        except click.UsageError as error:
            yield error.format_message()
            return
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        if not isinstance(command, click.Group):
            many = any(one.nargs == -1 for one in arguments)
            if left and not many:
                yield f"too many words: {' '.join(left)}"
            return
        if not left or left[0] == "VERB":
            return
        try:
            found = command.get_command(context, left[0])
        except click.UsageError as error:
            yield error.format_message()
            return
        if found is None:
            yield f"no verb `{left[0]}`"
            return
        command, words = found, left[1:]
        context = click.Context(command, parent=context, info_name=left[0])


def wrong_dflash(words: list[str]) -> Iterator[str]:
    from dflash.__main__ import COMMANDS

    if not words or words[0] in ("--help", "COMMAND"):
        return
    if words[0] not in COMMANDS:
        yield f"no command `{words[0]}`"
        return
    known = options_of(dflash_parser(words[0]))
    yield from (f"no option `{word}`" for word in words[1:] if _option(word) and word not in known)


@cache
def dflash_parser(name: str) -> ArgumentParser:
    from dflash.__main__ import COMMANDS, command_parser

    parser = command_parser(name)
    import_module(COMMANDS[name].module).add_arguments(parser)
    return parser


def options_of(parser: ArgumentParser) -> set[str]:
    found = set(parser._option_string_actions)
    for action in parser._actions:
        for inner in (action.choices or {}).values() if isinstance(action.choices, dict) else ():
            found |= options_of(inner)
    return found


def wrong_script(words: list[str]) -> Iterator[str]:
    if not words or not words[0].endswith(".py"):
        return
    path = ROOT / words[0]
    if not path.is_file():
        yield f"no file {words[0]}"
        return
    text = path.read_text(encoding="utf-8")
    for word in words[1:]:
        if _option(word) and f'"{word.partition("=")[0]}"' not in text:
            yield f"{words[0]} has no option `{word}`"


def _option(word: str) -> bool:
    return word.startswith("--")


@cache
def targets() -> frozenset[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z]+):", text, re.MULTILINE))
