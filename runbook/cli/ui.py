"""The verb that opens the terminal UI. Textual is imported here and nowhere else in the CLI."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import click

from runbook import report

if TYPE_CHECKING:
    from pathlib import Path


@click.command("tui")
@click.option("--read-only", is_flag=True, help="Look, but change nothing.")
@click.option("--run", "autorun", is_flag=True, help="Advance the graph while it is open.")
@click.option(
    "--keys", "list_keys", is_flag=True, help="List the keys and their names; open nothing."
)
@click.pass_obj
def tui_command(workspace: Path, read_only: bool, autorun: bool, list_keys: bool) -> None:
    """Open the terminal UI. Leaving it leaves the jobs running.

    Example: runbook tui --run
    """
    if list_keys:
        print_keys()
        return
    sys.exit(open_tui(workspace, read_only=read_only, autorun=autorun))


def open_tui(workspace: Path, *, read_only: bool = False, autorun: bool = False) -> int:
    """Opens the UI on the workspace at a path or above it."""
    from remote.passphrases import ask_by
    from runbook.workspace import find_workspace

    root = find_workspace(workspace).root  # a clear message before Textual takes the terminal
    ask_by(None)  # a thread must not read the terminal while the screen has it; the screen asks
    gc.disable()  # nothing is garbage yet; the app turns it on once the first screen is there
    from runbook.tui.start import run_tui

    return run_tui(root, autorun=autorun, read_only=read_only)


def print_keys() -> None:
    """The keys in force, by the names that the key file uses."""
    from runbook.tui.keyfile import keys_file, load_keys

    path = keys_file(os.environ)
    table = load_keys(path, required=bool(os.environ.get("RUNBOOK_KEYS")))
    report.table((key.id, key.keys, key.help) for key in table.keys)
    report.line(f'\nYour own: {path}, lines such as run = "r,f5" below [keys].')
