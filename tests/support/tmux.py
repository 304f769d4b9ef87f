"""A real terminal for tests: tmux with a server of its own; nobody else is touched."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from tests.support.deadline import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Tmux:
    """Starts programs in terminals, types, reads what stands there."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "tmux")
        self("new-session", "-d", "-s", "keep", "sleep", "3600")  # the server outlives each start

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", self.socket, *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout

    def start(self, name: str, argv: Sequence[str], columns: int, rows: int) -> None:
        """A program in a terminal of this size."""
        self("new-session", "-d", "-s", name, "-x", str(columns), "-y", str(rows), *argv)

    def screen(self, name: str, *options: str) -> str:
        """What stands in a terminal."""
        return self("capture-pane", "-p", "-t", name, *options)

    def wait_for(self, name: str, text: str, *, limit_s: float = 60) -> str:
        """The screen, once a text stands on it."""

        def there() -> str:
            shown = self.screen(name)
            return shown if text in shown else ""

        try:
            return wait_for(there, limit_s=limit_s, what=f"{text!r} in the terminal")
        except AssertionError as late:
            raise AssertionError(f"{late}\nit shows:\n{self.screen(name)}") from None

    def keys(self, name: str, *keys: str) -> None:
        """Press keys, as tmux names them."""
        self("send-keys", "-t", name, *keys)

    def pid(self, name: str) -> int:
        """The process in a terminal."""
        return int(self("list-panes", "-t", name, "-F", "#{pane_pid}"))

    def close(self) -> None:
        """End the server and all in it."""
        self("kill-server")
