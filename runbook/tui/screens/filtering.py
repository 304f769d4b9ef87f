"""The line for filtering, in the places that have one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.widgets import Input

from runbook.tui.keymap import KEYS
from runbook.tui.screens.acting import ActingScreen

if TYPE_CHECKING:
    from textual.widget import Widget

_ACTS = frozenset(key.action for key in KEYS if key.writes)


class FilteringScreen(ActingScreen):
    """Narrows what is shown as one types; escape takes that away."""

    FILTER: ClassVar[str] = ""
    """What the line says while it is empty; without it there is no such line."""

    def __init__(self) -> None:
        super().__init__(classes="place")
        self.needle = ""
        self.filter = Input(placeholder=self.FILTER, id="filter", compact=True)

    def draw(self) -> None:
        """Everything from the app's view, in place."""
        raise NotImplementedError

    def first_pane(self) -> Widget:
        """Where the keys go when the filter was entered."""
        raise NotImplementedError

    @on(Input.Changed, "#filter")
    def narrow(self, event: Input.Changed) -> None:
        """Filter as one types."""
        self.needle = event.value
        self.narrowed()

    def narrowed(self) -> None:
        """The filter changed."""
        self.draw()

    @on(Input.Submitted, "#filter")
    def keep_filter(self) -> None:
        """Enter keeps the filter and goes to what it left."""
        self.show_filter(bool(self.needle))
        self.first_pane().focus()
        self.filter_kept()

    def filter_kept(self) -> None:
        """The filter was entered."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Letters typed right behind the slash may still reach the list: they are no verbs."""
        return not (isinstance(self.focused, Input) and action in _ACTS)

    def action_filter(self) -> None:
        if not self.FILTER:
            self.home.voice.tell("Nothing to filter here.")
            return
        self.show_filter(True)
        self.set_focus(self.filter)

    def show_filter(self, shown: bool) -> None:
        """Show the line, or take it away."""
        self.filter.display = shown

    def unfilter(self) -> bool:
        """Take the filter away; whether there was one."""
        if not (self.needle or self.filter.display):
            return False
        self.filter.value = ""
        self.show_filter(False)
        self.first_pane().focus()
        return True
