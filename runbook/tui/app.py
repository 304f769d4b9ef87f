"""The app: its life, and the tick that takes facts home. Words and ways are elsewhere."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from textual.app import SuspendNotSupported
from textual.binding import Binding, BindingType

from remote.passphrases import ask_by
from runbook.tui import away, glyphs, parting, themes
from runbook.tui import format as fmt
from runbook.tui.attention_model import Matter, matters
from runbook.tui.bridge import Bridge, Looked, RunEnded
from runbook.tui.commands import BoardCommands
from runbook.tui.deeds import Deeds
from runbook.tui.describe import Looks
from runbook.tui.hearing import Ears
from runbook.tui.keyfile import KeyTable
from runbook.tui.logs import Fetching, Streams
from runbook.tui.memory import Keeper, Memory
from runbook.tui.navigation import Navigation
from runbook.tui.places import BY_PLACE
from runbook.tui.screens.board import BoardScreen
from runbook.tui.screens.pages import DeedsScreen, HelpScreen, LeaveScreen, WelcomeScreen
from runbook.tui.screens.place import PlaceScreen
from runbook.tui.type_ahead import TypeAhead
from runbook.tui.verbs import Verbs
from runbook.tui.voice import Voice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.text import Text
    from textual.command import Provider

    from runbook.tui.ports import Opener, ReaderOpener, ReaderPort
    from runbook.views import View

TICK_S = 0.1
FIRST_S = 0.25
"""How long the first screen has the processor to itself."""
SLOW_EVERY = 10
"""Ticks between drawings that no fact announces: ages and elapsed times."""
KEEP_EVERY = 20
"""Ticks between writing down where the person is, if that changed."""


def utc_now() -> datetime:
    """The clock of the screen."""
    return datetime.now(UTC)


class RunbookApp(TypeAhead):
    """One workspace in a terminal."""

    TITLE = "runbook"
    CSS_PATH = "styles/app.tcss"
    COMMANDS: ClassVar[set[type[Provider] | Callable[[], type[Provider]]]] = {BoardCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q,ctrl+c", "leave", "Quit", priority=True, show=False, id="quit_always"),
    ]

    def __init__(
        self,
        opener: Opener,
        *,
        reader: ReaderOpener | None = None,
        crash_file: Path,
        autorun: bool = False,
        read_only: bool = False,
        table: KeyTable | None = None,
        memory_file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__()
        self.service: ReaderPort = (reader or opener)()
        self.ears = Ears(self, self.service.view())
        self.streams = Streams(self.service.workspace.log)
        self.bridge = Bridge(opener, crash_file=crash_file, reader=reader)
        self.fetching = Fetching(self.bridge)
        self.board = BoardScreen()
        self.voice = Voice(self)
        self.ways = Navigation(self)
        self.verbs = Verbs(self)
        self.read_only = read_only
        self.table = table or KeyTable()
        self.now = clock
        self.deeds = Deeds()
        self._autorun = autorun and not read_only
        self._ticks = 0
        self._left_running = False
        self._matters: tuple[View | None, list[Matter]] = (None, [])
        self._keeper = Keeper(memory_file)
        self._environment = os.environ if environment is None else environment
        self._glyphs = glyphs.choose(self._environment)
        for theme in themes.THEMES:
            self.register_theme(theme)
        wanted = self._environment.get("TEXTUAL_THEME") or self._keeper.kept.theme
        self.theme = wanted if wanted in self.available_themes else themes.DARK.name
        self.looks = Looks(glyphs=self._glyphs, inks=themes.inks(self.theme_variables))

    # --- life -------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """The board first, then whatever moves it."""
        if self.table.changed:
            self.set_keymap(dict(self.table.changed))
        self.install_screen(self.board, "place-board")
        self.push_screen(self.board)
        self.theme_changed_signal.subscribe(self, lambda _theme: self._take_theme())
        self._take_theme()

    def begin(self) -> None:
        """The board is there: facts may come."""
        self.set_interval(TICK_S, self.tick)
        self.set_timer(FIRST_S, self._first_screen_is_there)
        ask_by(self.bridge.ask_passphrase)
        before = self._keeper.kept
        if self._autorun:
            self.verbs.run()
        else:
            self._come_back(before)
        if not before.welcomed:
            self._keep()
            self.push_screen(WelcomeScreen(self.looks, read_only=self.read_only))

    def _come_back(self, before: Memory) -> None:
        """To where the person was, and what happened since."""
        known = self.view.snapshot.by_id
        self.board.toggled = set(before.toggled)
        if before.task in known:
            self.board.go_to(before.task)
        if before.place in BY_PLACE and before.place != "board":
            self.ways.go(before.place, task=before.subject if before.subject in known else None)
        said = away.since(self.view, before, now=self.now())
        if said:
            self.voice.tell(said, stays=True)

    def _keep(self) -> None:
        """Write down where the person is."""
        moved = self.board.tasks.current if not self.board.cursor_follows else None
        subject = self.ways.subject
        self._keeper.keep(
            Memory(
                task=moved or "",
                place=self.place.PLACE,
                subject=subject.id if subject is not None else "",
                theme=self.theme if self.theme != themes.DARK.name else "",
                welcomed=True,
                seen_at=self.now().isoformat(),
                revision=self.view.snapshot.revision,
                toggled=tuple(sorted(self.board.toggled)),
            )
        )

    def _first_screen_is_there(self) -> None:
        """What may wait until something can be seen: the eyes load far more than the screen."""
        gc.freeze()
        gc.enable()
        self.bridge.watch()

    def on_unmount(self) -> None:
        """However it ended, no thread of ours goes on reading or asking."""
        ask_by(None)
        self.bridge.close(seconds=0.0)

    def _take_theme(self) -> None:
        self.looks = Looks(glyphs=self._glyphs, inks=themes.inks(self.theme_variables))
        self.set_class(self._glyphs.ascii_only, "-ascii")
        self.redraw()

    def tick(self) -> None:
        """Take the facts home, and draw what they changed."""
        if not self.is_running:
            return  # one more tick may come while the app closes
        self._ticks += 1
        self.hurry()
        told = self.bridge.drain()
        for fact in told:
            self.ears.hear(fact)
        if any(not isinstance(fact, Looked) for fact in told) or self._ticks % SLOW_EVERY == 0:
            self.redraw()
        if self._ticks % KEEP_EVERY == 0:
            self._keep()
        place = self.place
        if place.ready:
            if place.output_of is not None:
                self.fetching.look(self.view, place.output_of)
            place.tick()

    @property
    def place(self) -> PlaceScreen:
        """The place in front, perhaps below a dialog."""
        stack = reversed(self.screen_stack)
        return next((s for s in stack if isinstance(s, PlaceScreen)), self.board)

    def redraw(self) -> None:
        """Draw what is in front from the view."""
        if self.place.ready:
            self.place.draw()

    def matters(self) -> list[Matter]:
        """What waits for a person; found once for each view."""
        if self._matters[0] is not self.view:
            self._matters = (self.view, matters(self.view, now=self.now()))
        return self._matters[1]

    @property
    def view(self) -> View:
        """The graph as it was last seen."""
        return self.ears.view

    def finished_text(self) -> str:
        """What the top line says when nothing is left to do."""
        return self.ears.finished_text()

    # --- over the places ----------------------------------------------------------------------

    def open_help(self) -> None:
        """All keys."""
        self.push_screen(HelpScreen(self.looks, self.table))

    def open_deeds(self) -> None:
        """What was done here, as commands."""
        self.push_screen(DeedsScreen(self.looks, self.deeds.all), self._copy_deed)

    def _copy_deed(self, command: str | None) -> None:
        if command:
            self.voice.copy(command)

    def action_command_palette(self) -> None:
        """Any task, any host, any action."""
        from textual.command import CommandPalette

        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="A task, a host or an action"))

    def suspend_for(self, command: str, words: Sequence[str]) -> None:
        """Hand the terminal to one of our own commands, such as a shell; then come back."""
        root = str(self.service.workspace.root)
        argv = [sys.executable, "-m", "runbook", "-w", root, *words]
        try:
            with self.suspend():
                code = subprocess.run(argv, check=False).returncode
        except SuspendNotSupported:
            self.voice.tell(
                f"This terminal cannot be handed over. By hand: {command}", problem=True
            )
            return
        self.voice.did(command)
        if code:
            self.voice.tell(f"It ended with exit code {code}.", hint=f"By hand: {command}")
        self.refresh(layout=True)

    # --- leaving ----------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Leave; ask once while this process drives the graph, since nothing new starts then."""
        if isinstance(self.screen, LeaveScreen) or not self.bridge.engine_runs:
            self._leave()
            return
        self.push_screen(
            LeaveScreen(parting.open_jobs(self.view)), lambda yes: self._leave() if yes else None
        )

    def _leave(self) -> None:
        self._left_running = self.bridge.engine_runs
        self._keep()
        self.bridge.close()
        for fact in self.bridge.drain():
            if isinstance(fact, RunEnded):
                self.ears.result = fact.result
        try:
            self.ears.take_view(self.service.view())
        except Exception as error:  # noqa: BLE001  leaving must always be possible
            self.log(error)
        code = parting.exit_code(self.ears.result, left_running=self._left_running)
        self.exit(code, code, message=self.farewell())

    def farewell(self) -> Text:
        """What goes on without us, and how to come back."""
        return parting.farewell(self.view, self.finished_text())

    def _handle_exception(self, error: Exception) -> None:
        """A bug of ours: its traceback goes to a file, without the values of a hundred locals."""
        if self.is_headless:  # a test wants the error itself
            super()._handle_exception(error)
            return
        where = self.bridge.keep_traceback(error)
        jobs = "The jobs go on; `runbook tui` comes back."
        self.exit(1, 1, message=fmt.text(f"{type(error).__name__}: {error}. {where} {jobs}"))
