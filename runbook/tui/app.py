"""The app: themes, the bridge and its tick, the places. What a task is, it does not know."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, SuspendNotSupported
from textual.binding import Binding, BindingType

from runbook.engine.events import Info, Problem, Progressed
from runbook.errors import Exit, explain
from runbook.reasons import STOPPED_BY
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import glyphs, themes
from runbook.tui.attention_model import Matter, matters
from runbook.tui.bridge import Bridge, Broke, Carried, Looked, RunEnded, Seen, Told
from runbook.tui.commands import BoardCommands
from runbook.tui.describe import Looks
from runbook.tui.keyfile import KeyTable
from runbook.tui.logs import Streams
from runbook.tui.memory import Memory, recall, remember
from runbook.tui.places import BY_PLACE
from runbook.tui.screens.board import BoardScreen
from runbook.tui.screens.pages import HelpScreen, LeaveScreen, WelcomeScreen
from runbook.tui.screens.place import PlaceScreen
from runbook.tui.verbs import Verbs
from runbook.views import Live, RunResult, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.text import Text
    from textual.command import Provider

    from runbook.tui.ports import Opener, ReaderOpener, ReaderPort, ServicePort
    from runbook.tui.widgets.bars import MessageBar
    from runbook.tui.widgets.log_view import LogView
    from state.model import Task

TICK_S = 0.1
FIRST_S = 0.25
"""How long the first screen has the processor to itself."""
SLOW_EVERY = 10
"""Ticks between drawings that no fact announces: ages and elapsed times."""

_OUTCOMES = {
    "done": Exit.OK, "until": Exit.OK, "gate": Exit.NEEDS_APPROVAL, "held": Exit.CONFLICT,
    "interrupted": Exit.STILL_RUNNING, "failed": Exit.TASK_FAILED, "blocked": Exit.TASK_FAILED,
    "attention": Exit.UNKNOWN, "budget": Exit.OVER_BUDGET,
}  # fmt: skip


def utc_now() -> datetime:
    """The clock of the screen."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The last thing said to the person."""

    text: str
    hint: str = ""
    problem: bool = False
    about: str = ""
    """`run` for how a run ended: the next run makes it old."""


class RunbookApp(App[int]):
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
        self.view: View = self.service.view()
        self.streams = Streams(self.service.workspace.log)
        self.bridge = Bridge(opener, crash_file=crash_file, reader=reader)
        self.board = BoardScreen()
        self.verbs = Verbs(self)
        self.read_only = read_only
        self.table = table or KeyTable()
        self.now = clock
        self.result: RunResult | None = None
        self._autorun = autorun and not read_only
        self._run_seconds: float | None = None
        self._ticks = 0
        self._left_running = False
        self._progress: dict[str, Live] = {}
        self._said: Said | None = None
        self._subject: str | None = None
        self._places: dict[str, PlaceScreen] = {"board": self.board}
        self._matters: tuple[View | None, list[Matter]] = (None, [])
        self._memory_file = memory_file
        self._memory = recall(memory_file)
        self._environment = os.environ if environment is None else environment
        self._glyphs = glyphs.choose(self._environment)
        for theme in themes.THEMES:
            self.register_theme(theme)
        wanted = self._environment.get("TEXTUAL_THEME") or self._memory.theme
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
        if self._memory.task in self.view.snapshot.by_id and not self._autorun:
            self.board.go_to(self._memory.task)
        if self._autorun:
            self.verbs.run()
        if not self._memory.welcomed:
            self._memory = replace(self._memory, welcomed=True)
            remember(self._memory_file, self._memory)
            self.push_screen(WelcomeScreen(self.looks, read_only=self.read_only))

    def _first_screen_is_there(self) -> None:
        """What may wait until something can be seen: the eyes load far more than the screen."""
        gc.freeze()
        gc.enable()
        self.bridge.watch()

    def on_unmount(self) -> None:
        """However it ended, no thread of ours goes on reading."""
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
        told = self.bridge.drain()
        for fact in told:
            self._hear(fact)
        if any(not isinstance(fact, Looked) for fact in told) or self._ticks % SLOW_EVERY == 0:
            self.redraw()
        place = self.place
        if place.ready:
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

    # --- hearing ----------------------------------------------------------------------------

    def _hear(self, fact: Told) -> None:
        match fact:
            case Seen():
                self.take_view(fact.view)
            case Progressed():
                self._keep_progress(fact)
            case Info():
                self.tell(fact.text)
            case Problem():
                self.tell(fact.text, hint=fact.hint, problem=True, about="run")
            case Broke():
                about = "run" if fact.source == "engine" else ""
                self.tell(fact.text, hint=fact.hint, problem=True, about=about)
                if fact.otherwise is not None:
                    fact.otherwise(fact)
            case Carried():
                self.place.said(fact.command, pending=False)
                self.hush(about="run")
                if fact.then is not None:
                    fact.then(fact.answer)
            case Looked():
                fact.then(fact.answer)
            case RunEnded():
                self._run_seconds, self.result = fact.seconds, fact.result
                self._say_end(fact.result)
            case _:
                pass

    def take_view(self, view: View) -> None:
        """What the eyes read, with the newer progress that the engine told."""
        running = {task.id for task in view.snapshot.tasks if task.state in model.OPEN}
        self._progress = {name: live for name, live in self._progress.items() if name in running}
        self.view = replace(view, live={**view.live, **self._progress})
        if self._said is not None and self._said.about == "run" and self.finished_text():
            self._said = None

    def _keep_progress(self, fact: Progressed) -> None:
        known = self.view.live.get(fact.task)
        attempt = self.view.snapshot.latest_attempt(fact.task)
        self._progress[fact.task] = Live(
            attempt=attempt.id if attempt is not None else "",
            progress=fact.progress,
            out_size=known.out_size if known is not None else 0,
            err_size=known.err_size if known is not None else 0,
            beat=known.beat if known is not None else 0,
            seen_at=self.now().isoformat(),
        )

    def _say_end(self, result: RunResult) -> None:
        if result.outcome == "done":
            return  # the line on top says it
        stopped = STOPPED_BY in result.reason
        trouble = result.outcome in ("failed", "attention", "held") and not stopped
        gate = result.outcome in ("gate", "budget") and not stopped
        text = "It waits for a yes" if gate else "The run ended"
        hint = self.view.next.command if trouble else ""
        self.tell(f"{text}: {result.reason}", problem=trouble, hint=hint, about="run")

    def finished_text(self) -> str:
        """What the top line says when nothing is left to do."""
        tasks = [task for task in self.view.snapshot.tasks if not task.removed]
        if not tasks or any(task.state not in model.FINISHED for task in tasks):
            return ""
        ran = self._run_seconds is not None and self.result is not None and self.result.started
        took = f" in {fmt.duration(self._run_seconds)}" if ran and self._run_seconds else ""
        return f"All {len(tasks)} tasks are done{took}. q leaves."

    # --- saying -----------------------------------------------------------------------------

    def tell(self, text: str, *, hint: str = "", problem: bool = False, about: str = "") -> None:
        """One line for the person; a problem stays until it is put away."""
        if not problem and self._said is not None and self._said.problem:
            return
        self._said = Said(text=text, hint=hint, problem=problem, about=about)
        self.say_on(self.place.message)

    def say_on(self, bar: MessageBar) -> None:
        """Show on this bar what was said last."""
        if self._said is None:
            bar.clear()
        elif bar.said_last is not self._said:
            bar.say(self._said, self.looks, faded=self._forget)

    def _forget(self, said: Said) -> None:
        if self._said is said:
            self.hush()

    def hush(self, *, about: str = "") -> bool:
        """Put the message away (only one about this, if given); whether there was one."""
        if self._said is None or (about and self._said.about != about):
            return False
        self._said = None
        self.place.message.clear()
        return True

    def did(self, command: str, *, pending: bool = False) -> None:
        """Show the command that does the same."""
        self.place.said(command, pending=pending)

    def copy(self, text: str) -> None:
        """To the clipboard, by the terminal (OSC 52): works over SSH too."""
        self.copy_to_clipboard(text)
        self.tell(f"Copied: {fmt.clean(text, most=200)}")

    def copy_lines(self, log: LogView) -> None:
        """The visible lines of a log to the clipboard."""
        lines = log.visible_lines()
        self.copy_to_clipboard("\n".join(lines) + "\n" if lines else "")
        self.tell(f"Copied {len(lines)} line{'' if len(lines) == 1 else 's'} of the log.")

    def problem(self, error: Exception) -> None:
        """Say an error."""
        known = explain(error)
        text, hint = (known.message, known.hint) if known is not None else (str(error), "")
        self.tell(text or type(error).__name__, hint=hint, problem=True)

    # --- places -----------------------------------------------------------------------------

    @property
    def subject(self) -> Task | None:
        """The task that places other than the board are about."""
        return self.view.snapshot.by_id.get(self._subject or "")

    def go(self, name: str, *, task: str | None = None) -> None:
        """Open a place; it is about the task under the cursor, or the one named."""
        here = self.place
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
            self.install_screen(self._places[name], f"place-{name}")
        if here is self.board:
            self.push_screen(f"place-{name}")
        else:
            self.switch_screen(f"place-{name}")

    def go_back(self) -> None:
        """To the board, with its cursor on what was looked at."""
        if self.place is self.board:
            return
        current = self.place.current_task
        while self.screen is not self.board:
            self.pop_screen()
        if current is not None and current.id != self.board.tasks.current:
            self.board.go_to(current.id)

    def go_to_host(self, role: str) -> None:
        """The machine behind a role."""
        self.go("hosts")
        place = self._places["hosts"]
        place.call_after_refresh(place.go_to, role)

    def look_at(self, task: str) -> None:
        """Make another task the one that places are about."""
        self._subject = task

    def open_help(self) -> None:
        """All keys."""
        self.push_screen(HelpScreen(self.looks, self.table))

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
            self.tell(f"This terminal cannot be handed over. By hand: {command}", problem=True)
            return
        self.did(command)
        if code:
            self.tell(f"It ended with exit code {code}.", hint=f"By hand: {command}")
        self.refresh(layout=True)

    # --- leaving ----------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Leave; ask once while this process drives the graph, since nothing new starts then."""
        if isinstance(self.screen, LeaveScreen) or not self.bridge.engine_runs:
            self._leave()
            return
        self.push_screen(LeaveScreen(self.open_jobs()), lambda yes: self._leave() if yes else None)

    def open_jobs(self) -> list[str]:
        """What of ours lives on a host right now."""
        return [task.id for task in self.view.snapshot.tasks if task.state in model.OPEN]

    def _leave(self) -> None:
        self._left_running = self.bridge.engine_runs
        moved = self.board.tasks.current if not self.board.cursor_follows else None
        memory = Memory(
            task=moved or "", theme=self.theme if self.theme != themes.DARK.name else "",
            welcomed=True,
        )  # fmt: skip
        remember(self._memory_file, memory)
        self.bridge.close()
        for fact in self.bridge.drain():
            if isinstance(fact, RunEnded):
                self.result = fact.result
        try:
            self.take_view(self.service.view())
        except Exception as error:  # noqa: BLE001  leaving must always be possible
            self.log(error)
        code = self.exit_code()
        self.exit(code, code, message=self.farewell())

    def exit_code(self) -> int:
        """What the run came to, as every verb tells it."""
        if self.result is None:
            return int(Exit.STILL_RUNNING if self._left_running else Exit.OK)
        return int(_OUTCOMES.get(self.result.outcome, Exit.OK))

    def farewell(self) -> Text:
        """What goes on without us, and how to come back."""
        running = self.open_jobs()
        if running:
            names = ", ".join(running[:5]) + (" ..." if len(running) > 5 else "")
            said = (
                f"Still running on their hosts: {names}. Nothing new starts until `runbook run` "
                "or `runbook watch`; come back with `runbook tui`."
            )
        elif self.finished_text():
            said = self.finished_text().removesuffix(" q leaves.")
        else:
            said = f"Nothing runs. Next: {self.view.next.command or 'runbook status'}"
        return fmt.text(said)

    def _handle_exception(self, error: Exception) -> None:
        """A bug of ours: its traceback goes to a file, without the values of a hundred locals."""
        if self.is_headless:  # a test wants the error itself
            super()._handle_exception(error)
            return
        where = self.bridge.keep_traceback(error)
        jobs = "The jobs go on; `runbook tui` comes back."
        self.exit(1, 1, message=fmt.text(f"{type(error).__name__}: {error}. {where} {jobs}"))


def run_tui(workspace: Path, *, autorun: bool = False, read_only: bool = False) -> int:
    """Show a workspace until the person leaves; the exit code of what this process ran.

    Raises:
        RunbookError: the person's key file cannot be used, or there is no terminal.
    """
    from runbook.errors import RunbookError
    from runbook.reader import Reader
    from runbook.tui.keyfile import keys_file, load_keys

    table = load_keys(keys_file(os.environ), required=bool(os.environ.get("RUNBOOK_KEYS")))

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RunbookError(
            "The terminal UI needs a terminal.",
            hint="Without one: `runbook status`, `runbook brief`, `runbook run`.",
        )

    def opener() -> ServicePort:
        from runbook.service import Service

        return Service.open(workspace)

    app = RunbookApp(
        opener,
        reader=lambda: Reader.open(workspace),
        crash_file=workspace / ".runbook" / "crash.log",
        memory_file=workspace / ".runbook" / "tui.json",
        autorun=autorun,
        read_only=read_only,
        table=table,
    )
    try:
        code = app.run()
    finally:
        app.service.close()
    return app.return_code or 0 if code is None else code
