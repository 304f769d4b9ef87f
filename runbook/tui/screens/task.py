"""One task in full: what it does, why it stands where it stands, every attempt and its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from runbook.tui import applies
from runbook.tui import format as fmt
from runbook.tui.describe import Subject, describe
from runbook.tui.metrics import Metrics
from runbook.tui.screens.place import PlaceScreen
from runbook.tui.widgets.text_pane import TextPane

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.widget import Widget

    from state.model import Task


class TaskScreen(PlaceScreen):
    """[ and ] go to the task before and after."""

    PLACE = "task"
    AUTO_FOCUS = "#page"

    def __init__(self) -> None:
        super().__init__()
        self.page = TextPane(id="page", text_id="page-text")
        self._metrics = Metrics(None)
        self._plan: tuple[str, tuple[str, ...]] = ("", ())
        self._shown: str | None = None

    @property
    def output_of(self) -> Task | None:
        return self.current_task

    def body(self) -> ComposeResult:
        yield self.page

    def panes(self) -> Iterable[Widget]:
        return (self.page,)

    def own_keys(self) -> list[str]:
        return ["log", "attempt_before", "attempt_after", "back"]

    def suggested(self) -> str:
        return applies.suggested(self.home.view, self.current_task)

    def opened(self) -> None:
        task = self.current_task
        name = task.id if task is not None else None
        if name != self._shown:
            self._shown = name
            self.page.move_top()
            self.draw()

    def draw_body(self) -> None:
        app, task = self.home, self.current_task
        if task is None:
            self.page.entitle(Text("Task"))
            text = "No task is chosen. 1 goes to the board; enter on a task comes back here."
            self.page.show(fmt.text(text, app.looks.inks.muted))
            return
        self.page.entitle(fmt.text(f"{task.id}  {task.title}", end=app.looks.glyphs.ellipsis))
        path = app.streams.path(app.view, task.id, "progress")
        if path != self._metrics.path:
            self._metrics = Metrics(path)
            self._metrics.poll()
        subject = Subject(
            view=app.view, task=task, now=app.now(), metrics=self._metrics, full=True,
            plan=self._planned(task.id, f"{task.id} {task.definition_hash}"),
        )  # fmt: skip
        self.page.show(describe(subject, app.looks, width=self.page.room))

    def _planned(self, task: str, key: str) -> tuple[str, ...]:
        """What it does, with commands; asked once, off the screen's thread."""
        if self._plan[0] != key:
            self._plan = (key, ())

            def take(lines: tuple[str, ...]) -> None:
                if self._plan[0] == key:
                    self._plan = (key, lines)
                    self.draw()

            self.home.bridge.look("task plan", applies.planned(task), take)
        return self._plan[1]

    def tick(self) -> None:
        """The curve grows."""
        if self._metrics.poll():
            self.draw_body()

    def action_open(self) -> None:
        self.home.ways.go("log")

    def action_step(self, step: int) -> None:
        names = [task.id for task in self.home.view.snapshot.tasks if not task.removed]
        task = self.current_task
        if not names:
            return
        at = names.index(task.id) if task is not None and task.id in names else -step
        self.home.ways.look_at(names[max(0, min(len(names) - 1, at + step))])
        self.moved_on()
        self.opened()


SCREEN = TaskScreen
