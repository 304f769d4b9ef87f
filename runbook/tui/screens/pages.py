"""Pages over the board: the log of a task, the brief, the keys. Escape or q goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from runbook.tui import format as fmt
from runbook.tui.keymap import APP, BY_ID, KEYS, LOOK, MOVE, RUN, bindings
from runbook.tui.logs import title_of
from runbook.tui.widgets.bars import CommandBar, KeyBar
from runbook.tui.widgets.log_view import LogView

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from runbook.tui.app import RunbookApp
    from runbook.tui.describe import Looks

_LEGEND = (
    ("done", "done"), ("active", "runs"), ("serving", "serves"), ("verifying", "being checked"),
    ("ready", "could start"), ("blocked", "waits for others"), ("gated", "waits for your yes"),
    ("failed", "failed"), ("stale", "its definition changed"), ("attention", "needs a look"),
    ("skipped", "skipped"),
)  # fmt: skip


class LogScreen(Screen[None]):
    """One log on the whole screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(
            ("down", "up", "page_down", "page_up", "top", "bottom", "left", "right", "follow",
             "stream", "help")
        ),
        Binding("escape,q,L", "back", "Back"),
    ]  # fmt: skip
    AUTO_FOCUS = "#log"

    def __init__(self, task: str, stream: str | None) -> None:
        super().__init__()
        self._shown, self._stream = task, stream
        self.log_view = LogView(id="log")
        self.command = CommandBar(id="command")
        self.keys = KeyBar(id="keys")
        self.ready = False

    @property
    def home(self) -> RunbookApp:
        """The app, by its real type."""
        return cast("RunbookApp", self.app)

    def compose(self) -> ComposeResult:
        yield self.log_view
        yield self.command
        yield self.keys

    def on_mount(self) -> None:
        """From its end."""
        self.ready = True
        self.draw()

    def draw(self) -> None:
        """The file may be another one by now: a retry writes a new log."""
        looks = self.home.looks
        stream, path = self.home.streams.choose(self.home.view, self._shown, self._stream)
        self.log_view.show(path, looks)
        self.log_view.border_title = Text.assemble(
            (fmt.clean(self._shown), looks.inks.strong),
            "  ",
            title_of(self.log_view, stream, looks),
        )
        follow = " -f" if self.log_view.follow else ""
        self.command.show(
            f"runbook logs {self._shown}{' --err' if stream == 'err' else ''}{follow}", looks
        )
        self.keys.show(
            [
                BY_ID[name]
                for name in ("follow", "stream", "top", "bottom", "page_up", "page_down", "back")
            ],
            looks,
        )

    def tick(self) -> None:
        """The file grows."""
        if self.log_view.poll():
            self.draw()

    @on(LogView.FollowChanged)
    def name_log(self) -> None:
        """The title says whether the end is followed."""
        self.draw()

    def action_move(self, step: int) -> None:
        self.log_view.move(step)

    def action_move_page(self, step: int) -> None:
        self.log_view.move_page(step)

    def action_move_top(self) -> None:
        self.log_view.move_top()

    def action_move_bottom(self) -> None:
        self.log_view.move_bottom()

    def action_sideways(self, step: int) -> None:
        self.log_view.pan(step)

    def action_follow(self) -> None:
        self.log_view.set_follow(not self.log_view.follow)

    def action_stream(self) -> None:
        shown, _ = self.home.streams.choose(self.home.view, self._shown, self._stream)
        self._stream = "out" if shown == "err" else "err"
        self.draw()

    def action_help(self) -> None:
        self.home.open_help()

    def action_back(self) -> None:
        self.dismiss()


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


class BriefScreen(Screen[None]):
    """The hand-off text, as whoever takes over gets it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,B", "back", "Back")]

    def __init__(self, text: str, looks: Looks) -> None:
        super().__init__()
        self._text, self._looks = text, looks

    def compose(self) -> ComposeResult:
        with _Page(id="page") as page:
            page.border_title = "Brief"
            yield Static(_brief(self._text, self._looks), id="page-text")
        yield CommandBar(id="command")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        """The lower lines."""
        self.query_one("#command", CommandBar).show("runbook brief", self._looks)
        self.query_one("#keys", KeyBar).show([BY_ID["back"]], self._looks)
        self.query_one("#page").focus()

    def action_back(self) -> None:
        self.dismiss()


def _brief(text: str, looks: Looks) -> Text:
    """Headings stand out; nothing else of Markdown is interpreted."""
    out = Text()
    for line in text.splitlines():
        heading = line.startswith("#")
        shown = fmt.clean(line.lstrip("# ") if heading else line)
        out.append(shown + "\n", looks.inks.strong if heading else looks.inks.text)
    return out


class HelpScreen(ModalScreen[None]):
    """All keys, the same by command, and what the glyphs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1", "back", "Back")]

    def __init__(self, looks: Looks) -> None:
        super().__init__()
        self._looks = looks

    def compose(self) -> ComposeResult:
        with _Page(id="help") as page:
            page.border_title = "Keys"
            page.border_subtitle = "esc goes back"
            yield Static(_help(self._looks, wide=self.app.size.width >= 100))

    def on_mount(self) -> None:
        """Keys scroll at once."""
        self.query_one("#help").focus()

    def action_back(self) -> None:
        self.dismiss()


def _help(looks: Looks, *, wide: bool) -> Group:
    """The table; the commands only where there is room for them."""
    inks = looks.inks
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(min_width=42 if wide else 30)
    if wide:
        grid.add_column(no_wrap=True)
    for group in (RUN, LOOK, MOVE, APP):
        grid.add_row(Text(group, style=inks.accent))
        for key in KEYS:
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
