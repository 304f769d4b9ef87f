"""The home screen: the graph on the left, the task under the cursor and its log on the right."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Input, Static

from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import verbs
from runbook.tui.describe import Subject, describe
from runbook.tui.keymap import BY_ID, KEYS, bindings
from runbook.tui.logs import title_of
from runbook.tui.metrics import Metrics
from runbook.tui.widgets.bars import CommandBar, Header, KeyBar, MessageBar, NextBar, facts_age
from runbook.tui.widgets.log_view import LogView
from runbook.tui.widgets.task_list import TaskList

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from runbook.tui.app import RunbookApp
    from state.model import Task


class Detail(VerticalScroll, can_focus=True, inherit_bindings=False):
    """Scrolls the description of a task."""

    def move(self, step: int) -> None:
        """Lines up or down."""
        self.scroll_relative(y=step, animate=False)

    def move_page(self, step: int) -> None:
        """A page up or down."""
        self.move(step * max(1, self.size.height - 1))

    def move_top(self) -> None:
        """The beginning."""
        self.scroll_home(animate=False)

    def move_bottom(self) -> None:
        """The end."""
        self.scroll_end(animate=False)


class BoardScreen(Screen[None]):
    """Layout and routing; what the keys do to the run is in `verbs`."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(key.id for key in KEYS)]
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-narrow"),
        (100, "-normal"),
        (118, "-wide"),
        (140, "-huge"),
    ]
    AUTO_FOCUS = "#tasks"

    def __init__(self) -> None:
        super().__init__()
        self.ready = False
        """Whether its widgets are there; a tick may come before."""
        self.needle = ""
        self.trouble = False
        self.cursor_follows = True
        """Until a person moves it, the cursor goes along with what runs."""
        self.stream: str | None = None
        """`out` or `err` once chosen; None takes the one that says something."""
        self.header = Header(id="header")
        self.next_bar = NextBar(id="next")
        self.filter = Input(
            placeholder="filter: a name, a step, a state", id="filter", compact=True
        )
        self.tasks = TaskList(id="tasks")
        self.detail = Detail(id="detail")
        self.description = Static(id="description")
        self.log_view = LogView(id="log")
        self.message = MessageBar(id="message")
        self.command = CommandBar(id="command")
        self.keys = KeyBar(id="keys")
        self._metrics = Metrics(None)
        self._plan: tuple[str, tuple[str, ...]] = ("", ())
        self._command = ""

    @property
    def home(self) -> RunbookApp:
        """The app, by its real type."""
        return cast("RunbookApp", self.app)

    @property
    def current_task(self) -> Task | None:
        """The task under the cursor."""
        name = self.tasks.current
        return self.home.view.snapshot.by_id.get(name) if name is not None else None

    def compose(self) -> ComposeResult:
        yield self.header
        yield self.next_bar
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self.filter
                yield self.tasks
            with Vertical(id="right"):
                with self.detail:
                    yield self.description
                yield self.log_view
        yield self.message
        yield self.command
        yield self.keys

    def on_mount(self) -> None:
        """Draw from the view the app holds already."""
        self.tasks.border_title = "Tasks"
        self.ready = True
        self.draw()
        self.home.begin()

    def on_resize(self) -> None:
        """Lines are fitted to the width."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Everything from the app's view, in place."""
        if not self.ready:
            return
        app = self.home
        looks, view, now = app.looks, app.view, app.now()
        driver = model.driver(view, here=app.bridge.engine_runs)
        if app.read_only:
            driver = f"read-only {looks.glyphs.dot} {driver}"
        self.header.show(view, looks, driver=driver, age=facts_age(view, now))
        self.next_bar.show(view, looks, finished=app.finished_text())
        self.tasks.show(model.rows(view, now=now, needle=self.needle, trouble=self.trouble), looks)
        if self.cursor_follows:
            self.tasks.select(model.first_task(view))
        self.draw_task()

    def draw_task(self) -> None:
        """The right side and the lower lines, for the task under the cursor."""
        app, task = self.home, self.current_task
        looks = app.looks
        self._keys(task)
        pane, description = self.detail, self.description
        if task is None:
            pane.border_title = fmt.text(
                "Nothing matches" if self.needle or self.trouble else "No tasks"
            )
            description.update("")
            self.log_view.show(None, looks, placeholder="")
            return
        pane.border_title = fmt.text(task.title)
        self._follow_metrics(task)
        subject = Subject(
            view=app.view, task=task, now=app.now(), metrics=self._metrics, plan=self._planned(task)
        )
        width = max(24, (pane.size.width or 60) - 2)
        description.update(describe(subject, looks, width=width))
        self._log(task)

    def tick(self) -> None:
        """The log and the curve grow without the graph moving."""
        grew = self.log_view.poll()
        if self._metrics.poll():
            self.draw_task()
        elif grew or self.log_view.file.line_count == 0:
            task = self.current_task
            if task is not None:
                self._log(task)

    def said(self, command: str, *, pending: bool) -> None:
        """Show the command of what was just done, until the cursor moves."""
        self._command = command
        self.command.show(
            f"{command} ..." if pending else command, self.home.looks, done=not pending
        )

    def _keys(self, task: Task | None) -> None:
        app = self.home
        keys = verbs.working_keys(
            app.view, task, read_only=app.read_only, engine_runs=app.bridge.engine_runs
        )
        self.keys.show([BY_ID[name] for name in keys], app.looks)
        if not self._command:
            self.command.show(verbs.suggested(app.view, task), app.looks)

    def _planned(self, task: Task) -> tuple[str, ...]:
        """What it will do, asked once per task and only before it ran."""
        if task.state not in ("draft", "blocked", "ready", "gated"):
            return ()
        key = f"{task.id} {task.definition_hash} {task.state}"
        if self._plan[0] != key:
            try:
                lines = tuple(self.home.service.plan_task(task.id))
            except Exception as error:  # noqa: BLE001  a preview must not end the app
                lines = (f"cannot be said yet: {error}",)
            self._plan = (key, lines)
        return self._plan[1]

    def _follow_metrics(self, task: Task) -> None:
        path = self.home.streams.path(self.home.view, task.id, "progress")
        if path != self._metrics.path:
            self._metrics = Metrics(path)
            self._metrics.poll(1 << 22)

    def _log(self, task: Task) -> None:
        looks, view = self.home.looks, self.log_view
        stream, path = self.home.streams.choose(self.home.view, task.id, self.stream)
        placeholder = "No output yet" if path is not None else "No attempt has written here"
        view.show(path, looks, placeholder=placeholder)
        view.border_title = title_of(view, stream, looks)

    @on(TaskList.Selected)
    def follow_cursor(self) -> None:
        """Selecting shows."""
        self._command = ""
        self.stream = None
        self.detail.scroll_home(animate=False)
        self.draw_task()

    @on(TaskList.Moved)
    def leave_cursor(self) -> None:
        """Whoever moves the cursor keeps it."""
        self.cursor_follows = False

    @on(LogView.FollowChanged)
    def name_log(self) -> None:
        """The title says whether the end is followed."""
        if self.current_task is not None:
            self._log(self.current_task)

    @on(Input.Changed, "#filter")
    def narrow(self, event: Input.Changed) -> None:
        """Filter as one types."""
        self.needle = event.value
        self._retitle()
        self.draw()

    @on(Input.Submitted, "#filter")
    def keep_filter(self) -> None:
        """Enter keeps the filter and goes to the list."""
        self.filter.set_class(bool(self.needle), "-shown")
        self.tasks.focus()

    def _retitle(self) -> None:
        title = "Failed and waiting" if self.trouble else "Tasks"
        self.tasks.border_title = fmt.text(
            f"{title} matching {self.needle}" if self.needle else title
        )

    # --- keys -------------------------------------------------------------------------------

    def _panes(self) -> tuple[TaskList | Detail | LogView, ...]:
        return (self.tasks, self.detail, self.log_view)

    def _pane(self) -> TaskList | Detail | LogView:
        focused = self.focused
        return focused if isinstance(focused, (Detail, LogView)) else self.tasks

    def action_move(self, step: int) -> None:
        self._pane().move(step)

    def action_move_page(self, step: int) -> None:
        self._pane().move_page(step)

    def action_move_top(self) -> None:
        self._pane().move_top()

    def action_move_bottom(self) -> None:
        self._pane().move_bottom()

    def action_pane(self, step: int) -> None:
        at = self._panes().index(self._pane())
        self._panes()[(at + step) % 3].focus()

    def action_sideways(self, step: int) -> None:
        if isinstance(self.focused, LogView):
            self.log_view.pan(step)
        else:
            at = self._panes().index(self._pane())
            self._panes()[max(0, min(2, at + step))].focus()

    def go_to(self, task: str) -> None:
        """Put the cursor on a task by name, whatever is filtered."""
        self.cursor_follows = False
        self.trouble = False
        self.filter.value = ""
        self.needle = ""
        self._retitle()
        self.draw()
        self.tasks.select(task)
        self.tasks.focus()

    def action_open(self) -> None:
        if self.tasks.has_focus:
            self.detail.focus()

    def action_filter(self) -> None:
        field = self.filter
        field.set_class(True, "-shown")
        field.focus()

    def action_trouble(self) -> None:
        self.trouble = not self.trouble
        self._retitle()
        self.draw()

    def action_cursor_follow(self) -> None:
        self.cursor_follows = True
        self.draw()

    def action_follow(self) -> None:
        self.log_view.set_follow(not self.log_view.follow)

    def action_stream(self) -> None:
        if self.current_task is not None:
            shown, _ = self.home.streams.choose(self.home.view, self.current_task.id, self.stream)
            self.stream = "out" if shown == "err" else "err"
            self._log(self.current_task)

    def action_log(self) -> None:
        if self.current_task is not None:
            self.home.open_log(self.current_task.id, self.stream)

    def action_back(self) -> None:
        """One level: a message, then the filter, then the pane."""
        if self.message.clear():
            return
        field = self.filter
        if self.needle or field.has_focus or field.has_class("-shown"):
            field.value = ""
            field.set_class(False, "-shown")
        elif self.trouble:
            self.action_trouble()
        self.tasks.focus()

    def action_run(self) -> None:
        self.home.verbs.run()

    def action_stop(self) -> None:
        self.home.verbs.stop(self.current_task)

    def action_retry(self) -> None:
        self.home.verbs.retry(self.current_task)

    def action_skip(self) -> None:
        self.home.verbs.skip(self.current_task)

    def action_approve(self) -> None:
        self.home.verbs.approve(self.current_task)

    def action_note(self) -> None:
        self.home.verbs.note(self.current_task)

    def action_brief(self) -> None:
        self.home.open_brief()

    def action_help(self) -> None:
        self.home.open_help()

    def action_palette(self) -> None:
        self.app.action_command_palette()

    def action_leave(self) -> None:
        self.home.action_leave()
