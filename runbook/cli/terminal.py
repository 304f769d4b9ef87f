"""Words from the person at the terminal, never from a pipe: `/dev/tty` itself is read."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from runbook import report

if TYPE_CHECKING:
    from pathlib import Path

TERMINAL = "/dev/tty"


def has_person() -> bool:
    """Whether somebody can be asked: this process has a terminal of its own."""
    try:
        with open(TERMINAL, "rb"):  # noqa: PTH123 (a device)
            return True
    except OSError:
        return False


def ask_passphrase(path: Path, again: bool) -> str | None:
    """The passphrase of a key, typed unseen; None where there is nobody, or for an empty line."""
    if not has_person():
        return None
    wrong = "That is not it. " if again else ""
    try:
        return getpass.getpass(f"{wrong}Passphrase of {report.clean(str(path))}: ") or None
    except EOFError:
        return None


def ask_word(question: str) -> str:
    """A line typed at the terminal; empty where there is nobody."""
    if not has_person():
        return ""
    with open(TERMINAL, "r+b", buffering=0) as terminal:  # noqa: PTH123
        terminal.write(report.clean(question).encode())
        return terminal.readline().decode("utf-8", "replace").strip()
