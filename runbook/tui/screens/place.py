"""What all places share: the bars around the middle, the panes in it, and the common keys.

A place draws from the app's view, in place, and asks for nothing itself but through the bridge.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from runbook.tui import applies
from runbook.tui import board_model as model
from runbook.tui.keymap import bindings, common
from runbook.tui.places import BY_PLACE
from runbook.tui.screens.filtering import FilteringScreen
from runbook.tui.widgets.bars import CommandBar, Header, KeyBar, MessageBar, PlaceBar, facts_age
from runbook.tui.widgets.scrollbars import make_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widget import Widget

    from state.model import Task


@runtime_checkable
class Pane(Protocol):
    """What the moving keys act on."""

    def move(self, step: int) -> None: ...
    def move_page(self, step: int) -> None: ...
    def move_top(self) -> None: ...
    def move_bottom(self) -> None: ...


class PlaceScreen(FilteringScreen):
    """Layout and routing; what the keys do to the run is in `verbs`."""

    PLACE: ClassVar[str]
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(common())]
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-narrow"),
        (100, "-normal"),
        (118, "-wide"),
        (140, "-huge"),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012

    LABELS: ClassVar[Mapping[str, str]] = {"quit": "Board"}
    """Words of keys that do here something else than elsewhere, by id."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        """Whether its widgets are there; a tick may come before."""
        self.header = Header(id="header")
        self.places = PlaceBar(id="places")
        self.message = MessageBar(id="message")
        self.command = CommandBar(id="command")
        self.keys = KeyBar(id="keys")

    # --- what a place says of itself ----------------------------------------------------------

    def body(self) -> ComposeResult:
        """The middle."""
        raise NotImplementedError

    def draw_body(self) -> None:
        """The middle, from the app's view."""
        raise NotImplementedError

    def panes(self) -> Iterable[Widget]:
        """Where tab goes, in order."""
        raise NotImplementedError

    def own_keys(self) -> list[str]:
        """Ids of the keys worth showing here, before the general ones."""
        return []

    def suggested(self) -> str:
        """The one command that fits what is shown best."""
        task = self.current_task
        place = BY_PLACE[self.PLACE]
        return place.cli.replace("{task}", task.id if task is not None else "TASK")

    @property
    def output_of(self) -> Task | None:
        """The task whose output is shown here: it is fetched where nobody else copies it."""
        return None

    def tick(self) -> None:
        """Something may have grown without the graph moving."""

    def opened(self) -> None:
        """The place came to the front."""

    def go_to(self, name: str) -> None:
        """Put the cursor on something by name, where there is one."""

    # --- life ---------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.places
        if self.FILTER and self.PLACE != "board":
            yield self.filter
        yield from self.body()
        yield self.message
        yield self.command
        yield self.keys

    def on_mount(self) -> None:
        """Drawn once its size is known, which is at once."""
        self.ready = True
        if self.home.looks.glyphs.ascii_only:
            for pane in self.panes():
                make_plain(pane)
        self.call_after_refresh(self.opened)

    def on_screen_resume(self) -> None:
        """Something may have happened while it was hidden."""
        if self.ready:
            self.draw()
            self.opened()

    def on_resize(self) -> None:
        """Lines are fitted to the width."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Everything from the app's view, in place."""
        if not self.ready or not self.is_attached:
            return
        app = self.home
        looks, view = app.looks, app.view
        driver = model.driver(view, here=app.bridge.engine_runs)
        if app.read_only:
            driver = f"read-only {looks.glyphs.dot} {driver}"
        self.header.show(view, looks, driver=driver, age=facts_age(view, app.now()))
        self.places.show(self.PLACE, looks, app.table, waiting=len(app.matters()))
        self.draw_body()
        self.draw_lines()
        app.voice.say_on(self.message)

    def draw_lines(self) -> None:
        """The lower lines: the command, and the keys that work now."""
        app, task = self.home, self.current_task
        general = applies.working_keys(
            app.view, task, read_only=app.read_only, engine_runs=app.bridge.engine_runs
        )
        names = [*self.own_keys(), *general]
        if self.FILTER:
            names.insert(len(names) - 4, "filter")
        keys = [app.table.of(name) for name in dict.fromkeys(names)]
        self.keys.show([replace(k, label=self.LABELS.get(k.id, k.label)) for k in keys], app.looks)
        under_way = app.deeds.under_way
        if under_way is not None:
            self.command.show(f"{under_way.command}   under way", app.looks)
        elif not self.done:
            self.command.show(self.suggested(), app.looks)

    def said(self, command: str, *, pending: bool) -> None:
        """Show the command of what was just done, until the cursor moves."""
        self.done = "" if pending else command  # it may yet fail
        shown = f"{command}   under way" if pending else command
        self.command.show(shown, self.home.looks, done=not pending)

    def moved_on(self) -> None:
        """The cursor moved: the lower line is about what is under it now."""
        self.done = ""

    # --- moving -------------------------------------------------------------------------------

    def first_pane(self) -> Widget:
        return self._pane_widgets()[0]

    def _pane_widgets(self) -> list[Widget]:
        return list(self.panes())

    def _pane(self) -> Widget:
        panes = self._pane_widgets()
        return self.focused if self.focused is not None and self.focused in panes else panes[0]

    def action_move(self, step: int) -> None:
        if isinstance(pane := self._pane(), Pane):
            pane.move(step)

    def action_move_page(self, step: int) -> None:
        if isinstance(pane := self._pane(), Pane):
            pane.move_page(step)

    def action_move_top(self) -> None:
        if isinstance(pane := self._pane(), Pane):
            pane.move_top()

    def action_move_bottom(self) -> None:
        if isinstance(pane := self._pane(), Pane):
            pane.move_bottom()

    def action_pane(self, step: int) -> None:
        panes = self._pane_widgets()
        panes[(panes.index(self._pane()) + step) % len(panes)].focus()

    def action_sideways(self, step: int) -> None:
        panes = self._pane_widgets()
        at = panes.index(self._pane())
        panes[max(0, min(len(panes) - 1, at + step))].focus()

    def action_open(self) -> None:
        """Into what is under the cursor; a place may know better."""
        self.action_pane(1)

    def action_step(self, step: int) -> None:
        """Before and after; most places have neither."""

    def action_back(self) -> None:
        """One level: a message, then the filter, then the place."""
        if self.home.voice.hush() or self.unfilter():
            return
        self.home.ways.go_back()

    def action_leave(self) -> None:
        self.home.ways.go_back()
