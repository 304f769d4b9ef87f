"""The key table: no clash, every action exists, every command is one that the CLI understands."""

from __future__ import annotations

import shlex

import click
import pytest

from runbook.cli.main import cli
from runbook.tui.keymap import BY_ID, KEYS, Key, clashes
from runbook.tui.screens.board import BoardScreen


def test_no_key_is_taken_twice() -> None:
    assert clashes() == []
    assert len(BY_ID) == len(KEYS)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_action_exists_and_reads_well(key: Key) -> None:
    assert hasattr(BoardScreen, f"action_{key.action.partition('(')[0]}")
    assert key.help
    assert len(key.label) <= 8


@pytest.mark.parametrize("key", [key for key in KEYS if key.cli], ids=lambda key: key.id)
def test_the_command_beside_a_key_is_a_command(key: Key) -> None:
    _, *words = shlex.split(key.command("train"))
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    command.make_context(key.id, words)  # raises for an option or argument that does not exist
