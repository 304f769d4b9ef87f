"""Every key of the interface, once: its id, what it does, and the command that does the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.binding import Binding

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One row of the key table."""

    id: str
    keys: str
    """Comma-separated, as Textual names them."""
    shown: str
    action: str
    label: str
    """One or two words, for the footer."""
    help: str
    group: str
    cli: str = ""
    """The same by command; `{task}` is the task under the cursor."""
    writes: bool = False
    """Whether it changes the run: not offered in read-only mode."""
    priority: bool = False

    def command(self, task: str | None) -> str:
        """The command with its task filled in."""
        return self.cli.replace("{task}", task or "TASK")


RUN = "Run"
MOVE = "Move"
LOOK = "Look"
APP = "Leave"

KEYS: tuple[Key, ...] = (
    Key(
        id="run", keys="r", shown="r", action="run", label="Run", group=RUN, writes=True,
        help="Run or resume, until a gate or the end", cli="runbook run",
    ),
    Key(
        id="stop", keys="x", shown="x", action="stop", label="Stop", group=RUN, writes=True,
        help="Stop the task; asks first", cli="runbook stop {task}",
    ),
    Key(
        id="retry", keys="R", shown="R", action="retry", label="Retry", group=RUN, writes=True,
        help="A new attempt for a failed or lost task", cli="runbook retry {task}",
    ),
    Key(
        id="skip", keys="s", shown="s", action="skip", label="Skip", group=RUN, writes=True,
        help="Skip the task, with a reason", cli="runbook skip {task} --reason ...",
    ),
    Key(
        id="approve", keys="c", shown="c", action="approve", label="Approve", group=RUN,
        writes=True, help="Confirm a gate", cli="runbook gate approve {task}",
    ),
    Key(
        id="note", keys="n", shown="n", action="note", label="Note", group=RUN, writes=True,
        help="Write a note to the task", cli="runbook note TEXT --task {task}",
    ),
    Key(
        id="down", keys="j,down", shown="j ↓", action="move(1)", label="Down", group=MOVE,
        help="Next task or line",
    ),
    Key(
        id="up", keys="k,up", shown="k ↑", action="move(-1)", label="Up", group=MOVE,
        help="Previous task or line",
    ),
    Key(
        id="page_down", keys="ctrl+d,pagedown", shown="^d", action="move_page(1)", label="Page",
        group=MOVE, help="A page down",
    ),
    Key(
        id="page_up", keys="ctrl+u,pageup", shown="^u", action="move_page(-1)", label="Page up",
        group=MOVE, help="A page up",
    ),
    Key(
        id="top", keys="g,home", shown="g", action="move_top", label="Top", group=MOVE,
        help="First task, top of the log",
    ),
    Key(
        id="bottom", keys="G,end", shown="G", action="move_bottom", label="End", group=MOVE,
        help="Last task, end of the log",
    ),
    Key(
        id="pane_next", keys="tab", shown="tab", action="pane(1)", label="Pane", group=MOVE,
        help="Next pane: tasks, detail, log", priority=True,
    ),
    Key(
        id="pane_previous", keys="shift+tab", shown="S-tab", action="pane(-1)", label="Pane",
        group=MOVE, help="Previous pane", priority=True,
    ),
    Key(
        id="left", keys="h,left", shown="h ←", action="sideways(-1)", label="Left", group=MOVE,
        help="Pane to the left, or the log sideways",
    ),
    Key(
        id="right", keys="l,right", shown="l →", action="sideways(1)", label="Right", group=MOVE,
        help="Pane to the right, or the log sideways",
    ),
    Key(
        id="open", keys="enter", shown="enter", action="open", label="Open", group=MOVE,
        help="Into the detail of the task",
    ),
    Key(
        id="filter", keys="slash", shown="/", action="filter", label="Filter", group=LOOK,
        help="Show only tasks with these letters",
    ),
    Key(
        id="trouble", keys="exclamation_mark", shown="!", action="trouble", label="Trouble",
        group=LOOK, help="Show only failed and waiting tasks",
        cli="runbook status",
    ),
    Key(
        id="cursor_follow", keys="F", shown="F", action="cursor_follow", label="Go along",
        group=LOOK, help="Let the cursor follow the running task",
    ),
    Key(
        id="log", keys="L", shown="L", action="log", label="Log", group=LOOK,
        help="The log on the whole screen", cli="runbook logs {task}",
    ),
    Key(
        id="follow", keys="f", shown="f", action="follow", label="Follow", group=LOOK,
        help="Follow the end of the log", cli="runbook logs {task} -f",
    ),
    Key(
        id="stream", keys="e", shown="e", action="stream", label="Out/err", group=LOOK,
        help="Switch between output and errors", cli="runbook logs {task} --err",
    ),
    Key(
        id="brief", keys="B", shown="B", action="brief", label="Brief", group=LOOK,
        help="The hand-off text", cli="runbook brief",
    ),
    Key(
        id="palette", keys="colon,ctrl+p", shown=":", action="palette", label="Go to", group=LOOK,
        help="Any task, any action",
    ),
    Key(
        id="help", keys="question_mark,f1", shown="?", action="help", label="Help", group=APP,
        help="This page",
    ),
    Key(
        id="back", keys="escape", shown="esc", action="back", label="Back", group=APP,
        help="One step back: filter, message, screen",
    ),
    Key(
        id="quit", keys="q", shown="q", action="leave", label="Quit", group=APP,
        help="Leave; the jobs go on", cli="runbook tui",
    ),
)  # fmt: skip

BY_ID = {key.id: key for key in KEYS}


def bindings(ids: Iterable[str]) -> list[Binding]:
    """Textual bindings for these keys, remappable by id."""
    return [
        Binding(
            key.keys, key.action, key.label, show=False, id=key.id, tooltip=key.help,
            priority=key.priority,
        )
        for key in (BY_ID[name] for name in ids)
    ]  # fmt: skip


def clashes() -> list[str]:
    """Keys that two rows claim. Textual takes the first and says nothing, so a test looks."""
    taken = Counter(name for key in KEYS for name in key.keys.split(","))
    return sorted(name for name, times in taken.items() if times > 1)
