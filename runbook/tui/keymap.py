"""Every key of the interface, once: its id, what it does, and the command that does the same.

A person's own keys lie over the table: see `keyfile`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from textual.binding import Binding

from runbook.tui.places import PLACES

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
    scope: str = ""
    """The place where it works; empty means everywhere."""

    def command(self, task: str | None) -> str:
        """The command with its task filled in."""
        return self.cli.replace("{task}", quote(task) if task else "TASK")

    @property
    def names(self) -> list[str]:
        """Its keys, one by one."""
        return self.keys.split(",")


RUN = "Run"
GO = "Go to"
MOVE = "Move"
LOOK = "Look"
APP = "Leave"

KEYS: tuple[Key, ...] = (
    Key(
        id="run", keys="r", shown="r", action="run", label="Run", group=RUN, writes=True,
        help="Run or resume, until a gate or the end", cli="runbook run",
    ),
    Key(
        id="do_next", keys="full_stop", shown=".", action="do_next", label="Do next", group=RUN,
        help="Do what the line on top says: run, retry, approve, bind, or look at the log",
        cli="runbook next",
    ),
    Key(
        id="until", keys="u", shown="u", action="until", label="Until", group=RUN, writes=True,
        help="Run what the task needs, and the task, then stop", cli="runbook run --until {task}",
    ),
    Key(
        id="only", keys="o", shown="o", action="only", label="Only", group=RUN, writes=True,
        help="Run only this task", cli="runbook run {task}",
    ),
    Key(
        id="stop", keys="x", shown="x", action="stop", label="Stop", group=RUN, writes=True,
        help="Stop the task and verify it; asks for its name", cli="runbook stop {task}",
    ),
    Key(
        id="retry", keys="R", shown="R", action="retry", label="Retry", group=RUN, writes=True,
        help="A new attempt for what failed, was stopped or skipped, is stale, lost or done",
        cli="runbook retry {task}",
    ),
    Key(
        id="restart", keys="ctrl+r", shown="^r", action="restart", label="Restart", group=RUN,
        writes=True, help="Drain a server, stop it, start it again; asks for its name",
        cli="runbook restart {task}",
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
        id="decision", keys="D", shown="D", action="decision", label="Decide", group=RUN,
        writes=True, help="Write down a decision, for everybody who takes over",
        cli="runbook note --decision TEXT --task {task}",
    ),
    Key(
        id="claim", keys="C", shown="C", action="claim", label="Claim", group=RUN, writes=True,
        help="Keep the task for yourself for a while; again: give it back",
        cli="runbook claim {task}",
    ),
    Key(
        id="verify", keys="v", shown="v", action="verify", label="Verify", group=RUN, writes=True,
        help="Run the checks of a done task again", cli="runbook verify {task}",
    ),
    Key(
        id="probe", keys="P", shown="P", action="probe", label="Probe", group=RUN, writes=True,
        help="Ask the machine for its facts", cli="runbook host probe ROLE",
    ),
    Key(
        id="bind", keys="b", shown="b", action="bind", label="Bind", group=RUN, writes=True,
        help="Say which machine plays the role", cli="runbook host bind ROLE USER@ADDRESS",
    ),
    Key(
        id="reconcile", keys="a", shown="a", action="reconcile", label="Look", group=RUN,
        writes=True, help="Look again at everything that may run; starts and stops nothing",
        cli="runbook reconcile",
    ),
    Key(
        id="shell", keys="S", shown="S", action="shell", label="Shell", group=RUN, writes=True,
        help="A shell on the machine; exit comes back", cli="runbook host shell ROLE",
    ),
    Key(
        id="undo", keys="z", shown="z", action="undo", label="Undo", group=RUN, writes=True,
        help="Take back the last skip, claim or release done here",
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
        id="pane_next", keys="tab", shown="tab", action="pane(1)", label="Next", group=MOVE,
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
        help="Show only what has these letters; in a log: search",
    ),
    Key(
        id="trouble", keys="exclamation_mark", shown="!", action="trouble", label="Trouble",
        group=LOOK, help="Only failed and waiting tasks; in a log: the last failure",
        cli="runbook status",
    ),
    Key(
        id="fold", keys="space", shown="space", action="fold", label="Fold", group=LOOK,
        help="Show a family of tasks as one line, or each of them", scope="board",
    ),
    Key(
        id="cursor_follow", keys="F", shown="F", action="cursor_follow", label="Go along",
        group=LOOK, help="Let the cursor follow the running task", scope="board",
    ),
    Key(
        id="log", keys="L", shown="L", action="place('log')", label="Log", group=LOOK,
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
        id="match_next", keys="n", shown="n", action="match(1)", label="Next", group=LOOK,
        help="In a log: the next line that matches", scope="log",
    ),
    Key(
        id="match_previous", keys="N", shown="N", action="match(-1)", label="Previous", group=LOOK,
        help="In a log: the line before that matches", scope="log",
    ),
    Key(
        id="matching", keys="ampersand", shown="&", action="matching", label="Matching", group=LOOK,
        help="In a log: show only lines that match", scope="log",
    ),
    Key(
        id="attempt_before", keys="left_square_bracket", shown="[", action="step(-1)",
        label="Before", group=LOOK,
        help="The attempt before in a log, the task before, older events",
    ),
    Key(
        id="attempt_after", keys="right_square_bracket", shown="]", action="step(1)",
        label="After", group=LOOK,
        help="The attempt after in a log, the task after, newer events",
    ),
    Key(
        id="copy", keys="y", shown="y", action="copy", label="Copy", group=LOOK,
        help="Copy the command below to the clipboard",
    ),
    Key(
        id="deeds", keys="at", shown="@", action="deeds", label="Commands", group=LOOK,
        help="The commands of all that was done here, with what came of each",
    ),
    Key(
        id="copy_output", keys="Y", shown="Y", action="copy_output", label="Copy out", group=LOOK,
        help="Copy the lines of the log that are shown",
    ),
    Key(
        id="push", keys="p", shown="p", action="push", label="Push", group=LOOK, writes=True,
        help="In the hand-off: push the state to its store", scope="handoff", cli="runbook push",
    ),
    Key(
        id="brief", keys="B", shown="B", action="place('handoff')", label="Brief", group=LOOK,
        help="The hand-off text", cli="runbook brief",
    ),
    Key(
        id="palette", keys="colon,ctrl+p", shown=":", action="palette", label="Go to", group=LOOK,
        help="Any task, any host, any action",
    ),
    *(
        Key(
            id=f"place_{place.id}", keys=str(number), shown=str(number),
            action=f"place('{place.id}')", label=place.title, group=GO, help=place.help,
            cli=place.cli,
        )
        for number, place in enumerate(PLACES, start=1)
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
        help="Back to the board; from there, leave: the jobs go on", cli="runbook tui",
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


def common() -> list[str]:
    """The ids of the keys that work in every place."""
    return [key.id for key in KEYS if not key.scope]


def of_place(place: str) -> list[str]:
    """The ids of the keys that work in this place alone."""
    return [key.id for key in KEYS if key.scope == place]


def clashes(keys: Iterable[Key] = KEYS) -> list[str]:
    """Keys that two rows claim in one place. A key of a place hides a common one on purpose."""
    taken: Counter[tuple[str, str]] = Counter(
        (key.scope, name) for key in keys for name in key.names
    )
    return sorted(name for (_, name), times in taken.items() if times > 1)
