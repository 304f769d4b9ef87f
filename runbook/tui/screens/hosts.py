"""The machines: what each has, how it is doing, and how old that knowledge is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import host_model as hosts
from runbook.tui.attention_model import roles_of
from runbook.tui.screens.split import SplitScreen, labelled
from runbook.tui.widgets.text_list import TextRow

if TYPE_CHECKING:
    from rich.console import RenderableType

    from state.model import Task


class HostsScreen(SplitScreen):
    """Nothing here contacts a machine, except when P asks it."""

    PLACE = "hosts"
    EMPTY = "The runbook names no host roles yet."

    @property
    def current_task(self) -> Task | None:
        """Keys here act on the machine."""
        return None

    @property
    def current_role(self) -> str | None:
        return self.list.current

    def own_keys(self) -> list[str]:
        if self.home.read_only:
            return ["back"]
        role = self.list.current
        known = role is not None and hosts.bound(self.home.view, role) is not None
        return ["probe", "shell", "bind", "back"] if known else ["bind", "back"]

    def suggested(self) -> str:
        role = self.list.current
        if role is None:
            return "runbook host list"
        bound = hosts.bound(self.home.view, role) is not None
        return f"runbook host probe {role}" if bound else f"runbook host bind {role} USER@ADDRESS"

    def rows(self) -> list[TextRow]:
        view, looks, now = self.home.view, self.home.looks, self.home.now()
        out = []
        for role in roles_of(view):
            host = hosts.bound(view, role)
            state, word = hosts.state_of(view, host)
            seen = fmt.between(model.seen(view, role), now) if host is not None else None
            where = hosts.place_of(host) if host is not None else ""
            age = f"  seen {fmt.duration(seen)} ago" if seen is not None else ""
            room = self.list.room - len(fmt.clean(role)) - len(word)
            if len(age) + len(where) + 10 > room:
                where = ""  # the other side has it
            if len(age) + 8 > room:
                age = age.replace("seen ", "")
            out.append(
                TextRow(
                    role,
                    (
                        (f"{looks.glyphs.state(state)} ", looks.inks.state(state)),
                        (fmt.clean(role), looks.inks.text),
                        (f"  {word}", looks.inks.state(state)),
                        (age, looks.inks.muted),
                        (f"  {where}" if where else "", looks.inks.muted),
                    ),
                )
            )
        return out

    def describe(self, key: str) -> tuple[str, RenderableType]:
        app = self.home
        found = hosts.sections(app.view, key, app.looks, now=app.now(), width=self.pane.room - 10)
        return fmt.clean(key), labelled(found, app.looks, air=self.size.height >= 30)

    def draw_body(self) -> None:
        self.list.entitle(Text("Machines"))
        super().draw_body()

    def action_open(self) -> None:
        self.pane.focus()


SCREEN = HostsScreen
