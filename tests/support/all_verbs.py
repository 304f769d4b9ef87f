"""Every verb of the command line, with those of the groups."""

from __future__ import annotations

import click

from runbook.cli.main import COMMANDS
from runbook.cli.main import cli as group


def leaves(command: click.Command, words: str) -> list[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        return [
            found
            for name, inner in command.commands.items()
            for found in leaves(inner, f"{words} {name}")
        ]
    return [(words, command)]


def all_verbs() -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found = []
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        found += leaves(command, name)
    return found
