"""The palette: any task by name, any action by what it does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.command import DiscoveryHit, Hit, Hits, Provider

from runbook.tui import format as fmt
from runbook.tui.keymap import KEYS, MOVE
from runbook.tui.screens.board import BoardScreen

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.tui.app import RunbookApp


class BoardCommands(Provider):
    """Tasks and actions of the board."""

    async def discover(self) -> Hits:
        """What is offered before a letter is typed."""
        for name, about, call in self._all():
            yield DiscoveryHit(_shown(name, about), call, text=name)

    async def search(self, query: str) -> Hits:
        """What fits the letters."""
        matcher = self.matcher(query)
        for name, about, call in self._all():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, _shown(name, about), call, text=name)

    def _all(self) -> list[tuple[str, str, Callable[[], object]]]:
        board = self._board()
        if board is None:
            return []
        app = cast("RunbookApp", self.app)
        found: list[tuple[str, str, Callable[[], object]]] = []
        for key in KEYS:
            if key.group != MOVE and key.id not in ("palette", "back"):
                about = f"key {key.shown}" + (
                    f", {key.command(board.tasks.current)}" if key.cli else ""
                )
                act = partial(board.run_action, key.action)
                found.append((key.help, about, act))
        for task in app.view.snapshot.tasks:
            if not task.removed:
                about = f"{task.state}, {fmt.clean(task.title)}"
                found.append((f"Go to {fmt.clean(task.id)}", about, partial(_go, board, task.id)))
        found.append(("Theme", "other colours", app.action_change_theme))
        found.append(("Screenshot", "save what is seen as SVG", app.deliver_screenshot))
        return found

    def _board(self) -> BoardScreen | None:
        return next((s for s in self.app.screen_stack if isinstance(s, BoardScreen)), None)


def _go(board: BoardScreen, task: str) -> None:
    board.go_to(task)


def _shown(name: str, about: str) -> Text:
    """Both lines as `Text`: the palette parses bare strings, its help line too, as markup."""
    return Text.assemble(name, "\n", (fmt.clean(about), "not bold dim"))
