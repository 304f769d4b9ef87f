"""The home screen: the graph on the left, the task under the cursor and its log on the right."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on
from textual.containers import Horizontal, Vertical

from runbook.families import Family
from runbook.tui import applies
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui.describe import Subject, describe
from runbook.tui.describe_family import describe_family
from runbook.tui.keymap import bindings, of_place
from runbook.tui.logs import nothing_here, title_of
from runbook.tui.metrics import Metrics
from runbook.tui.screens.place import PlaceScreen
from runbook.tui.widgets.bars import NextBar
from runbook.tui.widgets.log_view import LogView
from runbook.tui.widgets.task_list import TaskList
from runbook.tui.widgets.text_pane import TextPane
from state.graph import family_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widget import Widget

    from runbook.views import View
    from state.model import Task

WAITING_TO_RUN = frozenset({"draft", "blocked", "ready", "gated"})


class BoardScreen(PlaceScreen):
    """Selecting shows; enter goes into the task."""

    PLACE = "board"
    FILTER = "filter: a name, a step, a state"
    LABELS: ClassVar[Mapping[str, str]] = {}
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(of_place("board"))]
    AUTO_FOCUS = "#tasks"

    def __init__(self) -> None:
        super().__init__()
        self.trouble = False
        self.stream: str | None = None
        """`out` or `err` once chosen; None takes the one that says something."""
        self.next_bar = NextBar(id="next")
        self.tasks = TaskList(id="tasks")
        self.detail = TextPane(id="detail", text_id="description")
        self.log_view = LogView(id="log")
        self.toggled: set[str] = set()
        """Families that a person folded or unfolded."""
        self._rows: list[model.Row] = []
        self._families: Mapping[str, Family] = {}
        self._made_of: tuple[object, ...] = ()
        self._metrics = Metrics(None)
        self._plan: tuple[str, tuple[str, ...]] = ("", ())

    @property
    def cursor_follows(self) -> bool:
        """Until a person moves it, and keeps it, the cursor goes along with what runs."""
        return not self.tasks.by_hand

    @property
    def current_task(self) -> Task | None:
        """The task under the cursor."""
        name = self.tasks.current
        return self.home.view.snapshot.by_id.get(name) if name is not None else None

    @property
    def output_of(self) -> Task | None:
        return self.current_task

    def body(self) -> ComposeResult:
        yield self.next_bar
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield self.filter
                yield self.tasks
            with Vertical(id="right"):
                yield self.detail
                yield self.log_view

    def panes(self) -> Iterable[Widget]:
        return (self.tasks, self.detail, self.log_view)

    def own_keys(self) -> list[str]:
        return ["fold"] if self._related() is not None else []

    def suggested(self) -> str:
        if (family := self.current_family) is not None:
            return f"runbook status {quote(family.name)}"
        return applies.suggested(self.home.view, self.current_task)

    def draw_body(self) -> None:
        app = self.home
        self.next_bar.show(
            app.view, app.looks, key=app.table.of("do_next").shown, finished=app.finished_text()
        )
        self.tasks.show_view(self._layout(app.view), app.looks, app.view, app.now())
        self._retitle()
        if self.cursor_follows:
            self._select(model.first_task(app.view))
        self.draw_task()

    def _layout(self, view: View) -> list[model.Row]:
        """The rows; the same list as long as nothing in it changed."""
        made_of = (view.snapshot.tasks, self.needle, self.trouble, frozenset(self.toggled))
        if made_of[0] is not (self._made_of or (None,))[0] or made_of[1:] != self._made_of[1:]:
            self._made_of = made_of
            self._families = model.families(view)
            self._rows = model.rows(
                view, needle=self.needle, trouble=self.trouble, toggled=self.toggled
            )
        return self._rows

    def _select(self, task: str | None) -> None:
        """The cursor to a task, or to the line that stands for its family."""
        if task is None:
            return
        name = family_of(task)
        there = any(isinstance(row, Family) and row.name == name for row in self._rows)
        self.tasks.select(name + model.FAMILY if there else task)

    @property
    def current_family(self) -> Family | None:
        """The family that the line under the cursor stands for."""
        name = self.tasks.current or ""
        known = self._families.get(name.removesuffix(model.FAMILY))
        return known if name.endswith(model.FAMILY) else None

    def _related(self) -> Family | None:
        """The family under the cursor, or the one that the task there belongs to."""
        return self._families.get(family_of(self.tasks.current or ""))

    def draw_task(self) -> None:
        """The right side, for the task under the cursor."""
        app, task = self.home, self.current_task
        pane = self.detail
        if (family := self.current_family) is not None:
            pane.entitle(fmt.text(f"{family.name}: {len(family.tasks)} tasks"))
            pane.show(describe_family(family, app.view, app.looks, now=app.now()))
            self._no_log()
            return
        if task is None:
            empty = not app.view.snapshot.tasks
            filtered = "Nothing matches" if self.needle or self.trouble else "No tasks"
            pane.entitle(fmt.text(filtered))
            pane.show(fmt.text(_NO_TASKS if empty else _NO_MATCH, app.looks.inks.muted))
            self._no_log()
            return
        pane.entitle(fmt.text(task.title, end=app.looks.glyphs.ellipsis))
        self._follow_metrics(task)
        subject = Subject(
            view=app.view, task=task, now=app.now(), metrics=self._metrics, plan=self._planned(task)
        )
        pane.show(describe(subject, app.looks, width=pane.room))
        self._log(task)

    def _no_log(self) -> None:
        self.log_view.show(None, self.home.looks, placeholder="")
        self.log_view.entitle(Text("Log"))

    def tick(self) -> None:
        """The log and the curve grow without the graph moving."""
        grew = self.log_view.poll()
        if self._metrics.poll():
            self.draw_task()
        elif grew or self.log_view.file.line_count == 0:
            task = self.current_task
            if task is not None:
                self._log(task)

    def _planned(self, task: Task) -> tuple[str, ...]:
        """What it will do, asked once per task and only before it ran."""
        if task.state not in WAITING_TO_RUN:
            return ()
        key = f"{task.id} {task.definition_hash} {task.state}"
        if self._plan[0] != key:
            self._plan = (key, ())

            def take(lines: tuple[str, ...]) -> None:
                if self._plan[0] == key:
                    self._plan = (key, lines)
                    self.draw_task()

            self.home.bridge.look("plan", applies.planned(task.id), take)
        return self._plan[1]

    def _follow_metrics(self, task: Task) -> None:
        path = self.home.streams.path(self.home.view, task.id, "progress")
        if path != self._metrics.path:
            self._metrics = Metrics(path)
            self._metrics.poll()

    def _log(self, task: Task) -> None:
        looks, view = self.home.looks, self.log_view
        stream, path = self.home.streams.choose(self.home.view, task.id, self.stream)
        problem = self.home.fetching.problem(self.home.view, task)
        nothing = nothing_here(self.home.view, task, problem=problem)
        view.show(path, looks, placeholder=nothing)
        view.entitle(title_of(view, stream, looks, problem=problem))

    @on(TaskList.Selected)
    def follow_cursor(self) -> None:
        """Selecting shows."""
        self.moved_on()
        self.stream = None
        self.detail.scroll_home(animate=False)
        self.draw_task()
        self.draw_lines()

    @on(TaskList.Opened)
    def open_clicked(self) -> None:
        """A second click is enter."""
        self.action_open()

    @on(LogView.FollowChanged)
    def name_log(self) -> None:
        """The title says whether the end is followed."""
        if self.current_task is not None:
            self._log(self.current_task)

    def _retitle(self) -> None:
        title = "Failed and waiting" if self.trouble else "Tasks"
        self.tasks.entitle(fmt.text(f"{title} matching {self.needle}" if self.needle else title))

    def go_to(self, task: str) -> None:
        """Put the cursor on a task by name, whatever is filtered."""
        self.tasks.by_hand = True
        self.trouble = False
        self.filter.value = ""
        self.show_filter(False)
        self.needle = ""
        family = self._families.get(family_of(task))
        if family is not None and model.is_folded(family, self.toggled):
            self.toggled ^= {family.name}
        self.draw()
        self.tasks.select(task)
        self.tasks.focus()

    def on_mount(self) -> None:
        """Draw from the view the app holds already; then facts may come."""
        super().on_mount()
        self.home.begin()

    # --- keys ---------------------------------------------------------------------------------

    def action_sideways(self, step: int) -> None:
        if self.focused is self.log_view:
            self.log_view.pan(step)
        else:
            super().action_sideways(step)

    def action_open(self) -> None:
        if self.focused is self.log_view:
            self.home.ways.go("log")
        elif self.current_family is not None:
            self.action_fold()
        elif self.current_task is not None:
            self.home.ways.go("task")

    def action_fold(self) -> None:
        """A family as one line, or as its members; the cursor stays with it."""
        family = self._related()
        if family is None:
            self.home.voice.tell("This task has no family; nothing folds.")
            return
        self.toggled ^= {family.name}
        self.tasks.by_hand = True
        self.draw()
        self._select(family.tasks[0].id)

    def action_trouble(self) -> None:
        self.trouble = not self.trouble
        self.draw()

    def action_cursor_follow(self) -> None:
        self.tasks.by_hand = False
        self.draw()

    def action_follow(self) -> None:
        self.log_view.set_follow(not self.log_view.follow)

    def action_stream(self) -> None:
        if self.current_task is not None:
            shown, _ = self.home.streams.choose(self.home.view, self.current_task.id, self.stream)
            self.stream = "out" if shown == "err" else "err"
            self._log(self.current_task)

    def action_copy_output(self) -> None:
        self.home.voice.copy_lines(self.log_view)

    def action_back(self) -> None:
        """One level: a message, then the filter, then the pane."""
        if self.home.voice.hush() or self.unfilter():
            return
        if self.trouble:
            self.action_trouble()
        self.tasks.focus()

    def action_leave(self) -> None:
        self.home.action_leave()


_NO_TASKS = "The runbook has no tasks yet. Write some into runbook.yaml, then: runbook init"
_NO_MATCH = "No task matches. esc takes the filter away."
SCREEN = BoardScreen
