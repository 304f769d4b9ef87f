"""Pages over a place: the keys, the welcome, the question before leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from runbook.tui import format as fmt
from runbook.tui.dialogs import ConfirmScreen
from runbook.tui.keymap import APP, GO, LOOK, MOVE, RUN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult

    from runbook.tui.deeds import Deed
    from runbook.tui.describe import Looks
    from runbook.tui.keyfile import KeyTable
    from runbook.tui.type_ahead import TypeAhead

_LEGEND = (
    ("done", "done"), ("active", "runs"), ("serving", "serves"), ("verifying", "being checked"),
    ("ready", "could start"), ("blocked", "waits for others"), ("gated", "waits for your yes"),
    ("failed", "failed"), ("stopped", "stopped by a person"), ("stale", "its definition changed"),
    ("attention", "needs a look"), ("skipped", "skipped"),
    ("unhealthy", "up, but does no work"),
)  # fmt: skip


class _Page(VerticalScroll, can_focus=True, inherit_bindings=False):
    """Scrolls a long text."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "scroll_down", "Down"),
        Binding("k,up", "scroll_up", "Up"),
        Binding("pagedown,ctrl+d,space", "page_down", "Page"),
        Binding("pageup,ctrl+u", "page_up", "Page up"),
        Binding("g,home", "scroll_home", "Top"),
        Binding("G,end", "scroll_end", "End"),
    ]


class HelpScreen(ModalScreen[None]):
    """All keys, the same by command, and what the glyphs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1", "back", "Back")]

    def __init__(self, looks: Looks, table: KeyTable) -> None:
        super().__init__()
        self._looks, self._table = looks, table

    def compose(self) -> ComposeResult:
        with _Page(id="help") as page:
            page.border_title = "Keys"
            page.border_subtitle = "esc goes back"
            yield Static(_help(self._looks, self._table, wide=self.app.size.width >= 100))

    def on_mount(self) -> None:
        """Keys scroll at once."""
        self.query_one("#help").focus()

    def action_back(self) -> None:
        self.dismiss()


def _help(looks: Looks, table: KeyTable, *, wide: bool) -> Group:
    """The table; the commands only where there is room for them."""
    inks = looks.inks
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(min_width=42 if wide else 30)
    if wide:
        grid.add_column(no_wrap=True)
    for group in (GO, RUN, LOOK, MOVE, APP):
        grid.add_row(Text(group, style=inks.accent))
        for key in table.keys:
            if key.group == group:
                cells = [Text(f"  {key.shown}", style=inks.busy), Text(key.help, style=inks.text)]
                if wide:
                    cells.append(Text(key.command(None), style=inks.muted))
                grid.add_row(*cells)
    legend = Table.grid(padding=(0, 3, 0, 0))
    meanings = [
        Text.assemble((f"{looks.glyphs.state(state)} ", inks.state(state)), (meaning, inks.text))
        for state, meaning in _LEGEND
    ]
    for start in range(0, len(meanings), 3):
        legend.add_row(Text(" "), *meanings[start : start + 3])
    return Group(grid, Text(), Text("Glyphs", style=inks.accent), legend)


class DeedsScreen(ModalScreen[str | None]):
    """What was done here: when, the command, what came of it. Enter copies a command."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,at", "back", "Back"),
        Binding("y,enter", "copy", "Copy"),
        Binding("j,down", "move(1)", "Down", priority=True),
        Binding("k,up", "move(-1)", "Up", priority=True),
    ]

    def __init__(self, looks: Looks, deeds: Sequence[Deed]) -> None:
        super().__init__()
        self._looks, self._deeds = looks, deeds[::-1]
        self._at = 0

    def compose(self) -> ComposeResult:
        with _Page(id="help") as page:
            page.border_title = "Commands of this screen"
            page.border_subtitle = "enter copies one, esc goes back"
            yield Static(self._drawn(), id="deeds")

    def on_mount(self) -> None:
        """Keys work at once."""
        self.query_one("#help").focus()

    def _drawn(self) -> Text:
        inks, glyphs = self._looks.inks, self._looks.glyphs
        if not self._deeds:
            return Text(
                "Nothing was done here yet. What a key does is listed as the command that does "
                "the same.",
                style=inks.muted,
            )
        lines = []
        for number, deed in enumerate(self._deeds):
            here = glyphs.arrow if number == self._at else " "
            mark = glyphs.ok if deed.well else glyphs.bad if deed.outcome else glyphs.unknown
            said = "" if deed.well else f"  {fmt.clean(deed.outcome) or 'under way'}"
            lines.append(
                Text.assemble(
                    (f"{here} {deed.at:%H:%M:%S} ", inks.muted),
                    (f"{mark} ", inks.ok if deed.well else inks.warn),
                    (fmt.clean(deed.command), inks.text),
                    (said, inks.warn),
                )
            )
        return Text("\n").join(lines)

    def action_move(self, step: int) -> None:
        """Another command."""
        self._at = max(0, min(len(self._deeds) - 1, self._at + step))
        self.query_one("#deeds", Static).update(self._drawn())

    def action_copy(self) -> None:
        """The command under the cursor."""
        self.dismiss(self._deeds[self._at].command if self._deeds else None)

    def action_back(self) -> None:
        self.dismiss(None)


class WelcomeScreen(ModalScreen[None]):
    """Shown once in a workspace: what this is, and the six keys that carry one far."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,space", "back", "Go on"),
    ]
    STAYS = ("up", "down", "pageup", "pagedown", "home", "end")
    """Keys that move its text, where it is longer than the screen."""

    def __init__(self, looks: Looks, *, read_only: bool) -> None:
        super().__init__()
        self._looks, self._read_only = looks, read_only

    def compose(self) -> ComposeResult:
        with _Page(id="dialog"):
            yield Static(_welcome(self._looks, read_only=self._read_only))

    def on_mount(self) -> None:
        """Keys close it at once."""
        self.query_one("#dialog").focus()

    def on_click(self) -> None:
        """A click is enough."""
        self.dismiss()

    def on_key(self, event: events.Key) -> None:
        """Any other key does what it does without this page."""
        if event.key not in (*self.STAYS, *self._bindings.key_to_bindings):
            event.stop()
            self.dismiss()
            cast("TypeAhead", self.app).type_again(event)

    def action_back(self) -> None:
        self.dismiss()


_FIRST_KEYS = (
    (".", "does what the line on top says"),
    ("r", "runs: tasks start as soon as what they need is done"),
    ("j k", "move; the right side shows what is under the cursor"),
    ("enter", "opens the task; esc comes back"),
    ("1-9", "go to other places: logs, hosts, training, what waits for you"),
    (":", "finds any task, host or action by name"),
    ("?", "lists all keys"),
    ("q", "leaves; jobs on their hosts go on"),
)


def _welcome(looks: Looks, *, read_only: bool) -> Group:
    inks = looks.inks
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=6, no_wrap=True)
    grid.add_column()
    for key, means in _FIRST_KEYS:
        if not (read_only and key in ".r"):
            grid.add_row(Text(key, style=inks.busy), Text(means, style=inks.text))
    return Group(
        Text("This is your runbook.", style=inks.strong),
        Text(
            "The line on top says what to do next, and why. Each key below also has a command; "
            "it stands at the bottom, y copies it.",
            style=inks.muted,
        ),
        Text(),
        grid,
        Text(),
        Text("enter goes on, and so does any key above; this is shown once.", style=inks.muted),
    )


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
