"""Curves of a training run from its mirrored progress lines, and the figures beside them."""

from __future__ import annotations

import time
from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Group
from textual.containers import Grid
from textual.widgets import Static

from runbook.tui import applies
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import training_model as training
from runbook.tui.metrics import Metrics
from runbook.tui.screens.place import PlaceScreen
from runbook.tui.widgets.curves import CurvePlot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.widget import Widget

    from runbook.views import Checkpoint
    from state.model import Task

MOST_PLOTS = 4
ASK_AGAIN_S = 30.0
"""Between two looks at the checkpoints of a run."""
TALL = 34
"""Rows below which only two plots fit; tab brings the others."""
EMPTY = (
    "No task of this runbook trains anything yet. A `train` step shows its loss here while it runs."
)
QUIET = "Nothing is told yet. Once it has made steps, its loss, accuracy, speed and waits are here."


class TrainingScreen(PlaceScreen):
    """[ and ] change the run; tab goes through the plots."""

    PLACE = "training"
    AUTO_FOCUS = "#plot-0"

    def __init__(self) -> None:
        super().__init__()
        self.figures = Static(id="figures")
        self.plots = tuple(CurvePlot(id=f"plot-{n}") for n in range(MOST_PLOTS))
        self._metrics = Metrics(None)
        self._name = ""
        self._first = 0
        self._more = False
        self._kept: tuple[str, tuple[Checkpoint, ...]] = ("", ())
        """Of which attempt, and its checkpoints when its host was last asked."""
        self._asked_at = 0.0

    @property
    def current_task(self) -> Task | None:
        """The run that is shown."""
        found = training.candidates(self.home.view)
        return next((task for task in found if task.id == self._name), found[0] if found else None)

    @property
    def output_of(self) -> Task | None:
        return self.current_task

    def body(self) -> ComposeResult:
        yield self.figures
        with Grid(id="plots"):
            yield from self.plots

    def panes(self) -> Iterable[Widget]:
        return [plot for plot in self.plots if plot.display] or [self.plots[0]]

    def own_keys(self) -> list[str]:
        runs = len(training.candidates(self.home.view))
        more = ["pane_next"] if self._more else []
        log = ["log"] if runs else []
        return [*more, *log, *(["attempt_before", "attempt_after"] if runs > 1 else []), "back"]

    def suggested(self) -> str:
        task = self.current_task
        return f"runbook checkpoints {quote(task.id)}" if task is not None else "runbook results"

    def opened(self) -> None:
        subject = self.home.ways.subject
        if subject is not None and subject.step == "train":
            self._name = subject.id
            self.draw()

    def draw_body(self) -> None:
        app, task = self.home, self.current_task
        if task is None:
            self.figures.update(fmt.text(EMPTY, app.looks.inks.muted))
            self._hide()
            return
        path = app.streams.path(app.view, task.id, "progress")
        if path != self._metrics.path:
            self._metrics = Metrics(path)
            while self._metrics.poll(1 << 22) and self._metrics.offset < 1 << 26:
                pass
        self._draw_run(task)

    def _draw_run(self, task: Task) -> None:
        app = self.home
        width = max(40, self.size.width - 4)
        lines = [fmt.text(f"{task.id}  {task.title}", app.looks.inks.strong)]
        attempt = app.view.snapshot.latest_attempt(task.id)
        known = self._kept[1] if attempt is not None and self._kept[0] == attempt.id else ()
        lines += training.figures(
            app.view, task, self._metrics, app.looks, width=width, found=known,
            most=3 if self.size.height >= TALL else 1,
        )  # fmt: skip
        plots = training.plots(self._metrics)
        room = MOST_PLOTS if self.size.height >= TALL else 2
        self._more = len(plots) > room
        first = self._first % len(plots) if self._more else 0
        found = (plots * 2)[first : first + min(room, len(plots))]
        if not found:
            lines.append(fmt.text(QUIET, app.looks.inks.muted))
        self.figures.update(Group(*(line for line in lines if line)))
        for index, plot in enumerate(self.plots):
            plot.display = index < len(found)
            if plot.display:
                plot.show(found[index], app.looks, dark=app.current_theme.dark)
        self.query_one("#plots").set_class(len(found) == 1, "-one")

    def _hide(self) -> None:
        for plot in self.plots:
            plot.display = False

    def tick(self) -> None:
        """New steps."""
        task = self.current_task
        if task is None:
            return
        self._ask_for_checkpoints(task)
        if self._metrics.poll():
            self._draw_run(task)

    def _ask_for_checkpoints(self, task: Task) -> None:
        """Of its host, at once and then now and again; off the screen's thread."""
        attempt = self.home.view.snapshot.latest_attempt(task.id)
        if attempt is None:
            return
        changed = self._kept[0] != attempt.id
        over = task.state not in model.OPEN and not changed
        if over or (not changed and time.monotonic() < self._asked_at + ASK_AGAIN_S):
            return
        self._asked_at = time.monotonic()
        self._kept = (attempt.id, () if changed else self._kept[1])

        def take(found: tuple[Checkpoint, ...]) -> None:
            if self._kept[0] == attempt.id and found:
                self._kept = (attempt.id, found)
                self.draw()

        self.home.bridge.look("checkpoints", applies.checkpoints(task.id), take)

    def action_step(self, step: int) -> None:
        found = training.candidates(self.home.view)
        task = self.current_task
        if task is None:
            return
        self._name = found[(found.index(task) + step) % len(found)].id
        self.draw()

    def action_open(self) -> None:
        self.home.ways.go("task")

    def action_pane(self, step: int) -> None:
        """To the next plot; where not all fit, the others come."""
        if self._more:
            self._first += 2 * step
            self.draw()
        else:
            super().action_pane(step)

    def action_move(self, step: int) -> None:
        self.action_pane(step)


SCREEN = TrainingScreen
