"""Going from place to place: each is made when it is first opened, and kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.tui.places import BY_PLACE

if TYPE_CHECKING:
    from runbook.tui.app import RunbookApp
    from runbook.tui.screens.place import PlaceScreen
    from state.model import Task


class Navigation:
    """The board lies below; at most one other place lies on it."""

    def __init__(self, app: RunbookApp) -> None:
        self._app = app
        self._subject: str | None = None
        self._places: dict[str, PlaceScreen] = {"board": app.board}

    @property
    def subject(self) -> Task | None:
        """The task that places other than the board are about."""
        return self._app.view.snapshot.by_id.get(self._subject or "")

    def look_at(self, task: str) -> None:
        """Make another task the one that places are about."""
        self._subject = task

    def go(self, name: str, *, task: str | None = None) -> None:
        """Open a place; it is about the task under the cursor, or the one named."""
        app = self._app
        here = app.place
        current = here.current_task
        if task is not None or current is not None:
            self._subject = task if task is not None or current is None else current.id
        if name == here.PLACE:
            here.draw()
            here.opened()
            return
        if name == "board":
            self.go_back()
            return
        if name not in self._places:
            self._places[name] = BY_PLACE[name].load()
            app.install_screen(self._places[name], f"place-{name}")
        if here is app.board:
            app.push_screen(f"place-{name}")
        else:
            app.switch_screen(f"place-{name}")

    def go_back(self) -> None:
        """To the board, with its cursor on what was looked at."""
        app = self._app
        if app.place is app.board:
            return
        current = app.place.current_task
        while app.screen is not app.board:
            app.pop_screen()
        if current is not None and current.id != app.board.tasks.current:
            app.board.go_to(current.id)

    def go_to_host(self, role: str) -> None:
        """The machine behind a role."""
        self.go("hosts")
        place = self._places["hosts"]
        place.call_after_refresh(place.go_to, role)
