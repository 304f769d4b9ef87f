"""The hand-off text: what a person or an agent who knows nothing must know, from one revision.

Bounded: a brief that grew with the run would not be read. When it is too long, rows are left out
of the least urgent sections first, and it says how many and where they are.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from runbook import brief_rows as row
from state import Event, Task, TaskKind, TaskState
from state.telling import told_state
from state.transitions import RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runbook.views import View

BUDGET = 4000
"""Tokens of a whole brief, by `count_tokens`."""
LAST_EVENTS = 8
LAST_NOTES = 5
LAST_RESULTS = 6
EDITED = (
    "runbook.yaml was edited since: `runbook plan` shows what that would change; whoever edited it "
    "takes it over with `runbook init`."
)
PERSON = "a person decides this"
MOST_ROWS = 100
LONGEST_NEXT = 500
"""Characters of why the next action is that: its end often says what else there is to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled list. `urgency` 0 is never cut; the highest number is cut first."""

    key: str
    title: str
    rows: tuple[str, ...]
    urgency: int
    more: str
    """The command that shows all of it."""
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """The hand-off text in parts, in the order in which it is read."""

    title: str
    goal: str
    revision: int
    progress: str
    next: str
    edited: bool
    about: tuple[str, ...]
    """The task it was asked for, in lines; empty for the whole run."""
    sections: tuple[Section, ...]


def render_brief(
    view: View,
    events: Iterable[Event] = (),
    *,
    titled: bool = True,
    about: str | None = None,
    budget: int = BUDGET,
) -> str:
    """Markdown, bounded, in a stable order. Everything a host said is quoted.

    Args:
        titled: with title and goal; PROGRESS.md has them above.
        about: with this task in front.
        budget: tokens at most, by `count_tokens`.

    Raises:
        UnknownTask: there is no task `about`.
    """
    return to_markdown(make_brief(view, events, about=about, budget=budget), titled=titled)


def make_brief(
    view: View, events: Iterable[Event] = (), *, about: str | None = None, budget: int = BUDGET
) -> Brief:
    """The parts of the brief, cut to the budget."""
    snapshot = view.snapshot
    tasks = [task for task in snapshot.tasks if not task.removed]
    brief = Brief(
        title=row.one_line(snapshot.meta.title or snapshot.meta.name),
        goal=" ".join(snapshot.meta.goal.split()) or "not stated",
        revision=snapshot.revision,
        progress=_progress(tasks),
        next=_next(view),
        edited=view.edited,
        about=row.about_task(view, snapshot.task(about)) if about else (),
        sections=tuple(section for section in _sections(view, tasks, events) if section.rows),
    )
    return fit(brief, budget)


def fit(brief: Brief, budget: int) -> Brief:
    """Leaves rows out, oldest of the least urgent section first, until the text fits."""
    size = count_tokens(to_markdown(brief))
    while size > budget:
        cut = max(
            (section for section in brief.sections if section.rows and section.urgency),
            key=lambda section: section.urgency,
            default=None,
        )
        if cut is None:
            return brief
        # Half of them at a time: a run of 10,000 tasks is cut in a few steps.
        keep = len(cut.rows) // 2
        shorter = replace(
            cut, rows=cut.rows[len(cut.rows) - keep :], left_out=cut.left_out + len(cut.rows) - keep
        )
        brief = replace(brief, sections=tuple(shorter if s is cut else s for s in brief.sections))
        size = count_tokens(to_markdown(brief))
    return brief


PIECE = re.compile(r"[^\W\d_]{1,4}|\d|[^\w\s]|_|\n", re.ASCII)
NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def count_tokens(text: str) -> int:
    """An upper estimate of the tokens of a brief, without a tokenizer at hand.

    A word counts a token per four letters begun, a digit, a mark and a line break one each, a
    character outside ASCII three. A test holds it against a real tokenizer.
    """
    return len(PIECE.findall(text)) + 3 * len(NOT_ASCII.findall(text))


def to_markdown(brief: Brief, *, titled: bool = True) -> str:
    """The brief as text."""
    head = [f"# {brief.title}", "", f"Goal: {brief.goal}", ""] if titled else []
    lines = [
        *head,
        f"At revision {brief.revision}: {brief.progress}.",
        "",
        f"**Next safe action:** {brief.next}",
        *(("", f"**{EDITED}**") if brief.edited else ()),
        *(("", *brief.about) if brief.about else ()),
    ]
    for section in brief.sections:
        rows = [f"- {row}" for row in section.rows]
        if section.left_out:
            rows.append(f"- {section.left_out} more: `{section.more}`")
        lines += ["", f"**{section.title}**", "", *rows]
    return "\n".join(lines) + "\n"


def _sections(view: View, tasks: list[Task], events: Iterable[Event]) -> list[Section]:
    snapshot = view.snapshot
    decisions = [note for note in snapshot.notes if note.decision]
    notes = [note for note in snapshot.notes if not note.decision]
    recent = [event for event in events if row.worth_telling(event)][-LAST_EVENTS:]
    wrong = [task for task in tasks if task.state in (TaskState.FAILED, TaskState.STALE)]
    told = [task for task in tasks if task.out and task.kind is not TaskKind.SERVICE]
    results = [task for task in told if row.numbers(task)][-LAST_RESULTS:]
    return [
        _make("documents", "Read first", 1, row.documents(view), "runbook doc list"),
        _make("claims", "Claimed", 1, [row.claim_line(view, claim) for claim in snapshot.claims]),
        _make("running", "Running", 1, [row.running_line(view, t) for t in tasks if row.runs(t)]),
        _make("hands_off", "Do not touch", 1, row.hands_off(view, tasks)),
        _make("unknown", "Unknown", 1, row.unknowns(view, tasks)),
        _make("waiting", "Waiting for a person", 2, row.waiting(snapshot, tasks)),
        _make("wrong", "Failed or stale", 2, [row.wrong_line(task) for task in wrong]),
        _make("money", "Deadlines and money", 2, row.money(snapshot, tasks), "runbook plan --cost"),
        _make(
            "results", "Last results", 4, [row.result_line(t) for t in results], "runbook results"
        ),
        _make("decisions", "Decisions", 3, [row.note_line(note) for note in decisions]),
        _make("notes", "Notes", 5, [row.note_line(note) for note in notes][-LAST_NOTES:]),
        _make("recent", "Recently", 6, [row.event_line(event) for event in recent]),
    ]


def _make(
    key: str, title: str, urgency: int, rows: list[str], more: str = "runbook status --json"
) -> Section:
    left_out = max(0, len(rows) - MOST_ROWS)
    return Section(
        key=key,
        title=title,
        rows=tuple(rows[left_out:]),
        urgency=urgency,
        more=more,
        left_out=left_out,
    )


def _progress(tasks: list[Task]) -> str:
    counts = Counter(told_state(task) for task in tasks)
    said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    phases = [task.phase for task in tasks if task.state in RUNNING or task.state.value == "ready"]
    return said + (f"; in phase `{phases[0]}`" if phases and phases[0] else "")


def _next(view: View) -> str:
    if not view.next.command:
        return view.next.reason + "."
    said = f"; it said {row.quoted(view.next.said)}" if view.next.said else ""
    whose = f"; **{PERSON}**" if view.next.person else ""
    return f"`{view.next.command}` ({row.one_line(view.next.reason, LONGEST_NEXT)}{said}{whose})"
