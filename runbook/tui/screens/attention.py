"""What waits for a person: each with its evidence for and against, and what can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from runbook.tui import format as fmt
from runbook.tui.screens.split import SplitScreen
from runbook.tui.widgets.text_list import TextRow

if TYPE_CHECKING:
    from runbook.tui.attention_model import Matter
    from state.model import Task


class AttentionScreen(SplitScreen):
    """The keys beside the choices work here at once."""

    PLACE = "attention"
    EMPTY = "Nothing waits for you."

    def _matter(self) -> Matter | None:
        return next((m for m in self.home.matters() if m.id == self.list.current), None)

    @property
    def current_task(self) -> Task | None:
        matter = self._matter()
        return self.home.view.snapshot.by_id.get(matter.task or "") if matter is not None else None

    @property
    def current_role(self) -> str | None:
        matter = self._matter()
        return matter.role if matter is not None else None

    def own_keys(self) -> list[str]:
        matter = self._matter()
        keys = [choice.key for choice in matter.choices if choice.key] if matter is not None else []
        if self.home.read_only:
            keys = [key for key in keys if not self.home.table.of(key).writes]
        return [*keys, "open", "back"]

    def suggested(self) -> str:
        matter = self._matter()
        if matter is None:
            return "runbook next"
        wanted = next((c.command for c in matter.choices if c.key not in ("log", "shell")), "")
        return wanted or "runbook next"

    def rows(self) -> list[TextRow]:
        looks = self.home.looks
        return [
            TextRow(
                matter.id,
                (
                    (f"{looks.glyphs.state(matter.state)} ", looks.inks.state(matter.state)),
                    (fmt.pad(matter.kind, 10), looks.inks.state(matter.state)),
                    (fmt.clean(matter.title), looks.inks.text),
                ),
            )
            for matter in self.home.matters()
        ]

    def draw_body(self) -> None:
        self.list.entitle(Text("Waits for you"))
        super().draw_body()

    def describe(self, key: str) -> tuple[str, RenderableType]:
        matter = self._matter()
        if matter is None:
            return "", Text()
        return fmt.clean(matter.title), self._page(matter)

    def _page(self, matter: Matter) -> Group:
        looks = self.home.looks
        inks, glyphs = looks.inks, looks.glyphs
        parts: list[RenderableType] = [
            Text.assemble(
                (f"{glyphs.state(matter.state)} {matter.kind}", inks.state(matter.state)),
                (f"  {matter.task}" if matter.task else "", inks.strong),
            ),
            fmt.text(matter.why or "no reason is recorded", inks.text),
        ]
        for title, lines, mark, ink in (
            ("speaks for it", matter.speaks_for, glyphs.ok, inks.ok),
            ("speaks against it", matter.speaks_against, glyphs.bad, inks.bad),
        ):
            if lines:
                parts += [Text(), Text(title, style=inks.muted)]
                parts += [
                    Text.assemble((f" {mark} ", ink), (fmt.clean(line), inks.text))
                    for line in lines
                ]
        if matter.choices:
            parts += [Text(), Text("what can be done", style=inks.muted), self._choices(matter)]
        return Group(*parts)

    def _choices(self, matter: Matter) -> Table:
        inks = self.home.looks.inks
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=4, no_wrap=True)
        grid.add_column(overflow="fold")
        for choice in matter.choices:
            key = self.home.table.of(choice.key).shown if choice.key else ""
            grid.add_row(Text(f" {key}", style=inks.busy), fmt.text(choice.means, inks.text))
            if choice.command:
                grid.add_row(Text(), fmt.text(f"$ {choice.command}", inks.muted))
        return grid

    def action_open(self) -> None:
        if self.current_task is not None:
            self.home.ways.go("task")
        elif self.current_role is not None:
            self.home.ways.go_to_host(self.current_role)


SCREEN = AttentionScreen
