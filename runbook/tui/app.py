"""The app: themes, the bridge and its tick, the screens. What a task is, it does not know."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import CommandPalette

from runbook.engine.events import Info, Problem, Progressed
from runbook.errors import Exit, explain
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import glyphs, themes
from runbook.tui.bridge import Bridge, Broke, Carried, RunEnded, Told
from runbook.tui.commands import BoardCommands
from runbook.tui.describe import Looks
from runbook.tui.dialogs import ConfirmScreen
from runbook.tui.logs import Streams
from runbook.tui.screens.board import BoardScreen
from runbook.tui.screens.pages import BriefScreen, HelpScreen, LogScreen
from runbook.tui.verbs import Verbs
from runbook.views import Live, RunResult, View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.text import Text
    from textual.command import Provider

    from runbook.tui.ports import Opener, ServicePort


TICK_S = 0.1
SLOW_EVERY = 10
"""Ticks between looks that no commit announces: ages, elapsed times, another client's progress."""

REST = 3.0
"""A large graph is read less often: at most a quarter of the time goes into it."""

_OUTCOMES = {
    "done": Exit.OK, "until": Exit.OK, "gate": Exit.NEEDS_APPROVAL, "held": Exit.CONFLICT,
    "interrupted": Exit.STILL_RUNNING, "failed": Exit.TASK_FAILED, "blocked": Exit.TASK_FAILED,
    "attention": Exit.UNKNOWN,
}  # fmt: skip


def utc_now() -> datetime:
    """The clock of the screen."""
    return datetime.now(UTC)


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
        crash_file: Path,
        autorun: bool = False,
        read_only: bool = False,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__()
        self.service: ServicePort = opener()
        self.view: View = self.service.view()
        self.streams = Streams(self.service)
        self.bridge = Bridge(opener, crash_file=crash_file)
        self.board = BoardScreen()
        self.verbs = Verbs(self)
        self.read_only = read_only
        self.now = clock
        self.result: RunResult | None = None
        self._autorun = autorun and not read_only
        self._run_seconds: float | None = None
        self._ticks = 0
        self._due = False
        self._rest_until = 0.0
        self._left_running = False
        self._progress: dict[str, Live] = {}
        self._environment = os.environ if environment is None else environment
        self._glyphs = glyphs.choose(self._environment)
        self.register_theme(themes.DARK)
        self.register_theme(themes.LIGHT)
        self.theme = self._environment.get("TEXTUAL_THEME") or themes.DARK.name
        self.looks = Looks(glyphs=self._glyphs, inks=themes.inks(self.theme_variables))

    # --- life -------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """The board first, then whatever moves it."""
        self.push_screen(self.board)
        self.theme_changed_signal.subscribe(self, lambda _theme: self._take_theme())
        self._take_theme()

    def begin(self) -> None:
        """The board is there: facts may come."""
        self.set_interval(TICK_S, self.tick)
        if self._autorun:
            self.verbs.run()

    def _take_theme(self) -> None:
        self.looks = Looks(glyphs=self._glyphs, inks=themes.inks(self.theme_variables))
        self.set_class(self._glyphs.ascii_only, "-ascii")
        self.redraw()

    def tick(self) -> None:
        """Take the facts home; look at the database only when somebody wrote, and once a second."""
        if not self.is_running:
            return  # one more tick may come while the app closes
        self._ticks += 1
        told = self.bridge.drain()
        for fact in told:
            self._hear(fact)
        self._due = self._due or bool(told) or self._ticks % SLOW_EVERY == 0 or self._written()
        if self._due and time.monotonic() >= self._rest_until:
            self._due = False
            began = time.monotonic()
            self.refresh_view()
            self._rest_until = time.monotonic() + REST * (time.monotonic() - began)
        for screen in self.screen_stack:
            if isinstance(screen, (BoardScreen, LogScreen)) and screen.ready:
                screen.tick()

    def _written(self) -> bool:
        try:
            return self.service.changed()
        except Exception as error:  # noqa: BLE001  shown by the reading that follows
            self._problem(error)
            return False

    def refresh_view(self) -> None:
        """Read the graph anew and draw it; what was shown stays when that fails."""
        try:
            view = self.service.view()
        except Exception as error:  # noqa: BLE001  a locked database must not end the screen
            self._problem(error)
            return
        running = {task.id for task in view.snapshot.tasks if task.state in model.OPEN}
        self._progress = {name: live for name, live in self._progress.items() if name in running}
        self.view = replace(view, live={**view.live, **self._progress})
        self.redraw()

    def redraw(self) -> None:
        """Draw what is on the stack from the view."""
        for screen in self.screen_stack:
            if isinstance(screen, (BoardScreen, LogScreen)) and screen.ready:
                screen.draw()

    def _hear(self, fact: Told) -> None:
        match fact:
            case Progressed():
                self._keep_progress(fact)
            case Info():
                self.tell(fact.text)
            case Problem():
                self.tell(fact.text, hint=fact.hint, problem=True)
            case Broke():
                self.tell(fact.text, hint=fact.hint, problem=True)
            case Carried():
                self.board.said(fact.command, pending=False)
            case RunEnded():
                self._run_seconds, self.result = fact.seconds, fact.result
                self._say_end(fact.result)
            case _:
                pass

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
        trouble = result.outcome in ("failed", "attention", "held")
        text = {"gate": "It waits for a yes", "failed": "The run ended"}.get(
            result.outcome, "The run ended"
        )
        self.tell(
            f"{text}: {result.reason}",
            problem=trouble,
            hint=self.view.next.command if trouble else "",
        )

    def finished_text(self) -> str:
        """What the top line says when nothing is left to do."""
        tasks = [task for task in self.view.snapshot.tasks if not task.removed]
        if not tasks or any(task.state not in model.FINISHED for task in tasks):
            return ""
        ran = self._run_seconds is not None and self.result is not None and self.result.started
        took = f" in {fmt.duration(self._run_seconds)}" if ran and self._run_seconds else ""
        return f"All {len(tasks)} tasks are done{took}. q leaves."

    # --- saying -----------------------------------------------------------------------------

    def tell(self, text: str, *, hint: str = "", problem: bool = False) -> None:
        """One line for the person; a problem stays until it is put away."""
        bar = self.board.message
        if not problem and bar.has_class("-problem"):
            return
        bar.say(text, self.looks, hint=hint, problem=problem)

    def did(self, command: str, *, pending: bool = False) -> None:
        """Show the command that does the same."""
        self.board.said(command, pending=pending)

    def _problem(self, error: Exception) -> None:
        known = explain(error)
        text, hint = (known.message, known.hint) if known is not None else (str(error), "")
        self.tell(text or type(error).__name__, hint=hint, problem=True)

    # --- places -----------------------------------------------------------------------------

    def open_log(self, task: str, stream: str | None) -> None:
        """The log of a task on the whole screen."""
        self.push_screen(LogScreen(task, stream))

    def open_brief(self) -> None:
        """The hand-off text."""
        try:
            text = self.service.brief()
        except Exception as error:  # noqa: BLE001  the board must stay usable
            self._problem(error)
            return
        self.push_screen(BriefScreen(text, self.looks))

    def open_help(self) -> None:
        """All keys."""
        self.push_screen(HelpScreen(self.looks))

    def action_command_palette(self) -> None:
        """Any task, any action."""
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette(placeholder="A task or an action"))

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
        self.bridge.close()
        for fact in self.bridge.drain():
            if isinstance(fact, RunEnded):
                self.result = fact.result
        self.refresh_view()
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


class LeaveScreen(ConfirmScreen):
    """Asked while this process drives the graph. A second q leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "answer(True)", "Leave")]

    def __init__(self, running: list[str]) -> None:
        names = ", ".join(running[:4]) or "no job"
        super().__init__(
            "Leave while it runs?",
            f"The jobs go on ({names}). Nothing new starts until `runbook run` or `runbook watch`.",
            yes="Leave",
        )


def run_tui(workspace: Path, *, autorun: bool = False, read_only: bool = False) -> int:
    """Show a workspace until the person leaves; the exit code of what this process ran."""
    from runbook.service import Service

    def opener() -> ServicePort:
        return Service.open(workspace)

    app = RunbookApp(
        opener,
        crash_file=workspace / ".runbook" / "crash.log",
        autorun=autorun,
        read_only=read_only,
    )
    try:
        code = app.run()
    finally:
        app.service.close()
    return app.return_code or 0 if code is None else code
