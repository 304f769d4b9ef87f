"""What the audits found: gates and histograms, then samples with the loss mask in colour."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from runbook.tui import data_model as data
from runbook.tui import format as fmt
from runbook.tui.screens.split import SplitScreen, labelled
from runbook.tui.widgets.text_list import TextRow
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state.model import Task


class DataScreen(SplitScreen):
    """An audit's files are brought from its host once, off the screen's thread, and kept."""

    PLACE = "data"
    FILTER = "filter samples: an id, a flag, a word in them"
    EMPTY = "This runbook has no audit task, so nobody looks at the data."

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, Mapping[str, Any]] = {}
        """By attempt."""
        self._said: dict[str, str] = {}
        """Why there is nothing, by attempt; also that it was asked for."""

    def _audits(self) -> list[Task]:
        tasks = self.home.view.snapshot.tasks
        return [task for task in tasks if task.step == "audit" and not task.removed]

    @property
    def current_task(self) -> Task | None:
        name = (self.list.current or "").partition(" ")[0]
        return self.home.view.snapshot.by_id.get(name)

    def own_keys(self) -> list[str]:
        return ["open", "back"] if self.list.current is not None else ["back"]

    def suggested(self) -> str:
        task = self.current_task
        return f"runbook audit {quote(task.id)}" if task is not None else "runbook audit TASK"

    def rows(self) -> list[TextRow]:
        looks, _view = self.home.looks, self.home.view
        out: list[TextRow] = []
        for task in self._audits():
            state = told_state(task)
            out.append(
                TextRow(
                    f"{task.id} ",
                    (
                        (f"{looks.glyphs.state(state)} ", looks.inks.state(state)),
                        (fmt.clean(task.title), looks.inks.strong),
                    ),
                )
            )
            found = self._report_of(task)
            samples = found.get("samples") if found is not None else None
            for number, sample in enumerate(samples if isinstance(samples, list) else ()):
                if isinstance(sample, dict) and self._wanted(sample):
                    key = f"{task.id} {number}"
                    out.append(
                        TextRow(key, (("  ", looks.inks.text), *data.sample_row(sample, looks)))
                    )
        return out

    def _wanted(self, sample: Mapping[str, Any]) -> bool:
        if not self.needle:
            return True
        text = str({k: v for k, v in sample.items() if k != "tokens"}).casefold()
        return all(word in text for word in self.needle.casefold().split())

    def _report_of(self, task: Task) -> Mapping[str, Any] | None:
        """What is known of its newest attempt; asked for when it may be there."""
        attempt = self.home.view.snapshot.latest_attempt(task.id)
        if attempt is None or not task.out.get("path"):
            return None
        if attempt.id not in self._found and attempt.id not in self._said:
            self._said[attempt.id] = "Its files are being brought from the host ..."

            def take(found: Mapping[str, Any]) -> None:
                self._found[attempt.id] = found
                self.draw()

            def miss(broke: Any) -> None:
                self._said[attempt.id] = f"{broke.text} {broke.hint} enter asks again."
                self.draw()

            self.home.bridge.ask(
                f"runbook audit {quote(task.id)}",
                lambda service: service.audit(task.id),
                then=take,
                otherwise=miss,
            )
        return self._found.get(attempt.id)

    def draw_body(self) -> None:
        self.list.entitle(Text("Audits and samples"))
        super().draw_body()

    def describe(self, key: str) -> tuple[str, RenderableType]:
        name, _, number = key.partition(" ")
        task = self.home.view.snapshot.by_id.get(name)
        if task is None:
            return "", Text()
        found = self._report_of(task)
        looks = self.home.looks
        if found is None:
            return fmt.clean(task.title), fmt.text(self._why_not(task), looks.inks.muted)
        if number:
            sample = found["samples"][int(number)]
            return fmt.clean(sample.get("id") or "sample"), data.sample_text(sample, looks)
        report = found.get("report")
        if not isinstance(report, dict):
            return fmt.clean(task.title), Text("Its report is empty.")
        sections = data.report_sections(report, looks, width=self.pane.room - 10)
        source = fmt.text(report.get("source") or "", looks.inks.muted)
        return fmt.clean(task.title), Group(source, Text(), labelled(sections, looks, air=True))

    def _why_not(self, task: Task) -> str:
        attempt = self.home.view.snapshot.latest_attempt(task.id)
        if attempt is not None and attempt.id in self._said:
            return self._said[attempt.id]
        return f"{task.id} has written no report yet: it is {told_state(task)}."

    def action_open(self) -> None:
        task = self.current_task
        attempt = self.home.view.snapshot.latest_attempt(task.id) if task is not None else None
        if attempt is not None and attempt.id not in self._found:
            self._said.pop(attempt.id, None)
            self.draw()
        else:
            self.pane.focus()


SCREEN = DataScreen
