"""The key table: no clash, every action exists, every command is one that the CLI understands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from runbook.cli.main import cli
from runbook.errors import RunbookError
from runbook.tui.keyfile import keys_file, load_keys
from runbook.tui.keymap import BY_ID, KEYS, Key, clashes
from runbook.tui.places import BY_PLACE
from runbook.tui.screens.pages import HelpScreen
from tests.support.tui_driver import driven, in_front
from tests.support.waiting import wait_until
from tests.support.workspaces import cli as command_line
from tests.support.workspaces import make

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.tui.app import RunbookApp
    from tests.support.fake_service import World


def test_no_key_is_taken_twice() -> None:
    assert clashes() == []
    assert len(BY_ID) == len(KEYS)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_every_action_exists_and_reads_well(key: Key) -> None:
    place = BY_PLACE[key.scope or "board"].load()
    assert hasattr(place, f"action_{key.action.partition('(')[0]}")
    assert key.help
    assert len(key.label) <= 9


@pytest.mark.parametrize("key", [key for key in KEYS if key.cli], ids=lambda key: key.id)
def test_the_command_beside_a_key_is_a_command(key: Key) -> None:
    _, *words = shlex.split(key.command("train"))
    command: click.Command | None = cli
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None
    command.make_context(key.id, words)  # raises for an option or argument that does not exist


def keys(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    return path


def test_own_keys_lie_over_the_table(tmp_path: Path) -> None:
    table = load_keys(keys(tmp_path, '[keys]\nrun = "f5,!"\ntrouble = "t"\n'))
    assert table.of("run").names == ["f5", "exclamation_mark"]
    assert table.of("run").shown == "f5"
    assert table.of("trouble").shown == "t"
    assert table.of("stop") is BY_ID["stop"]
    assert table.changed == {"run": "f5,exclamation_mark", "trouble": "t"}
    assert load_keys(tmp_path / "none").changed is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[keys]\nstpo = "x"\n', "did you mean `stop`?"),
        ("[keys]\nrun = 3\n", "wants keys as text"),
        ('[keys]\nrun = "r,"\n', "wants keys as text"),
        ('[keys]\nrun = "hyperdrive+x"\n', "`hyperdrive+x` is not a key"),
        ('[keys]\nrun = "x"\n', "`x` would do two things: run, stop"),
        ('[colours]\na = "b"\n', "no table [colours]"),
        ("keys = 1\n", "write [keys]"),
        ("[keys\n", "line 1"),
    ],
)
def test_a_bad_key_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(RunbookError, match=re.escape(said)) as caught:
        load_keys(keys(tmp_path, text))
    assert "keys.toml" in caught.value.message
    assert caught.value.hint


def test_a_missing_key_file_is_only_told_when_it_was_named(tmp_path: Path) -> None:
    with pytest.raises(RunbookError, match="No key file"):
        load_keys(tmp_path / "none", required=True)
    environment = {"XDG_CONFIG_HOME": "/c"}
    assert keys_file(environment) == Path("/c/runbook/keys.toml")
    assert keys_file({**environment, "RUNBOOK_KEYS": "/k"}) == Path("/k")


async def test_own_keys_work_and_are_shown(
    make_app: Callable[..., RunbookApp], world: World, tmp_path: Path
) -> None:
    table = load_keys(keys(tmp_path, '[keys]\nretry = "f6"\nhelp = "f2"\n'))
    app = make_app(table=table)
    async with driven(app) as pilot:
        app.board.go_to("smoke")
        await wait_until(lambda: app.board.tasks.current == "smoke", "the cursor")
        await pilot.press("R")
        assert not world.calls
        await pilot.press("f6")
        await wait_until(lambda: world.state("smoke") == "ready", "the retry")
        await pilot.press("f2")
        await in_front(app, HelpScreen)


def test_the_documented_keys_are_the_keys() -> None:
    text = Path("docs/tui.md").read_text(encoding="utf-8")
    for key in KEYS:
        row = f"| `{key.id}` | `{key.shown}` | {key.help} |"
        assert row in text, f"docs/tui.md lacks: {row}"


def test_a_bad_key_file_stops_before_the_terminal_is_taken(tmp_path: Path) -> None:
    make(
        tmp_path / "w", '  a: {title: A, phase: one, step: shell, with: {argv: ["true"]}}\n'
    ).close()
    path = keys(tmp_path, '[keys]\nrnu = "r"\n')
    done = subprocess.run(
        [sys.executable, "-m", "runbook", "-w", str(tmp_path / "w"), "tui"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "RUNBOOK_KEYS": str(path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "did you mean `run`?" in done.stderr
    assert done.stdout == ""


def test_without_a_terminal_it_says_so_and_ends(tmp_path: Path) -> None:
    task = "  a: {title: A, phase: one, step: shell, with: {sh: 'true'}}\n"
    make(tmp_path, task).close()
    ended = command_line(tmp_path, "tui")
    assert ended.returncode == 2
    assert "needs a terminal" in ended.stderr
