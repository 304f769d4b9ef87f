"""The hand-off text: what a person or an agent who knows nothing must know, from one revision.

Bounded: a brief that grew with the run would not be read. When it is too long, rows are left out
of the least urgent sections first, and it says how many and where they are.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING

from runbook.reasons import other_key, stop_pending
from runbook.requests import open_requests
from state import Claim, Event, Note, Snapshot, Task, TaskKind, TaskState
from state.graph import descendants
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
LONGEST = 160
MOST_ROWS = 100
SETTLED = frozenset({TaskState.DONE, TaskState.SKIPPED})


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
        title=one_line(snapshot.meta.title or snapshot.meta.name),
        goal=" ".join(snapshot.meta.goal.split()) or "not stated",
        revision=snapshot.revision,
        progress=_progress(tasks),
        next=_next(view),
        edited=view.edited,
        about=_about(view, snapshot.task(about)) if about else (),
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
    recent = [event for event in events if _worth_telling(event)][-LAST_EVENTS:]
    wrong = [task for task in tasks if task.state in (TaskState.FAILED, TaskState.STALE)]
    told = [task for task in tasks if task.out and task.kind is not TaskKind.SERVICE]
    results = [task for task in told if _numbers(task)][-LAST_RESULTS:]
    return [
        _make("documents", "Read first", 1, _documents(view), "runbook doc list"),
        _make("claims", "Claimed", 1, [_claim_line(view, claim) for claim in snapshot.claims]),
        _make("running", "Running", 1, [_running_line(view, t) for t in tasks if _runs(t)]),
        _make("hands_off", "Do not touch", 1, _hands_off(view, tasks)),
        _make("unknown", "Unknown", 1, _unknowns(view, tasks)),
        _make("waiting", "Waiting for a person", 2, _waiting(snapshot, tasks)),
        _make("wrong", "Failed or stale", 2, [_wrong_line(task) for task in wrong]),
        _make("money", "Deadlines and money", 2, _money(snapshot, tasks), "runbook plan --cost"),
        _make("results", "Last results", 4, [_result_line(t) for t in results], "runbook results"),
        _make("decisions", "Decisions", 3, [_note_line(note) for note in decisions]),
        _make("notes", "Notes", 5, [_note_line(note) for note in notes][-LAST_NOTES:]),
        _make("recent", "Recently", 6, [_event_line(event) for event in recent]),
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
    counts = Counter(task.state.value for task in tasks)
    said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    phases = [task.phase for task in tasks if task.state in RUNNING or task.state.value == "ready"]
    return said + (f"; in phase `{phases[0]}`" if phases and phases[0] else "")


def _next(view: View) -> str:
    if not view.next.command:
        return view.next.reason + "."
    said = f"; it said {quoted(view.next.said)}" if view.next.said else ""
    whose = f"; **{PERSON}**" if view.next.person else ""
    return f"`{view.next.command}` ({one_line(view.next.reason)}{said}{whose})"


def _about(view: View, task: Task) -> tuple[str, ...]:
    snapshot = view.snapshot
    after = list(descendants(snapshot, task.id))
    attempt = snapshot.latest_attempt(task.id)
    lines = [
        f"**Task `{task.id}`: {one_line(task.title)}**",
        "",
        (
            f"- {task.state}{_because(task)}; step `{task.step}`, role `{task.role or 'none'}`, "
            f"phase `{task.phase}`"
        ),
        f"- needs: {_names([need.task for need in task.needs])}",
        f"- needed by: {_names(after)}",
    ]
    if attempt is not None:
        ended = f", {attempt.cls}" if attempt.cls else ""
        lines.append(f"- attempt {attempt.number} on {attempt.host}: {attempt.state}{ended}")
    lines += [
        f"- {check.purpose} check `{one_line(check.name)}`: {check.verdict} at {when(check.at)}"
        for check in snapshot.checks_of(task.id)
    ]
    lines += [f"- {_note_line(note)}" for note in snapshot.notes if note.task == task.id]
    return (*lines, f"- look: `runbook status {quote(task.id)}`, `runbook logs {quote(task.id)}`")


def _because(task: Task) -> str:
    return f" ({quoted(task.reason)})" if task.reason else ""


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:12])
    return (shown or "nothing") + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _runs(task: Task) -> bool:
    return task.state in RUNNING


def _running_line(view: View, task: Task) -> str:
    attempt = view.snapshot.latest_attempt(task.id)
    where = f" on {attempt.host}, attempt {attempt.number}" if attempt and attempt.host else ""
    logs = f"look: `runbook logs {quote(task.id)}`"
    if pending := stop_pending(view.snapshot, task):
        return f"`{task.id}` {task.state}{where}; {quoted(pending)}; {logs}"
    return f"`{task.id}` {task.state}{where}; {logs}, stop: `runbook stop {quote(task.id)}`"


def _documents(view: View) -> list[str]:
    since = {"changed": ", **changed since it was listed**", "gone": ", **not there any more**"}
    return [
        f"{quoted(one.path)} {one_line(one.title)} "
        f"(sha256 {one.sha256[:12]}, listed {when(one.at)})"
        f"{since.get(view.documents.get(one.path, ''), '')}"
        for one in view.snapshot.documents
    ]


def _claim_line(view: View, claim: Claim) -> str:
    what = "the whole run" if claim.subject == "run" else f"`{claim.subject}`"
    over = " (run out)" if view.claims and claim.subject not in view.claims else ""
    why = f": {quoted(claim.reason)}" if claim.reason else ""
    return (
        f"{what} by {claim.holder} since {when(claim.at)} for {claim.for_s / 60:g} min{over}{why}"
    )


def _hands_off(view: View, tasks: list[Task]) -> list[str]:
    rows = []
    for task in tasks:
        attempt = view.snapshot.latest_attempt(task.id)
        if task.state in RUNNING and attempt is not None and attempt.detail.get("job"):
            held = [*task.resources, *(f"port {n}" for n in attempt.detail["job"]["ports"] or ())]
            holds = f", {', '.join(held)}" if held else ""
            rows.append(f"on {attempt.host}: the processes and files of `{task.id}`{holds}")
        elif task.state is TaskState.ATTENTION and attempt is not None:
            rows.append(f"on {attempt.host}: whatever is left of `{task.id}`; it may still run")
    rows += [
        f"what {claim.holder} claimed: `{claim.subject}`"
        for claim in view.snapshot.claims
        if not view.claims or claim.subject in view.claims
    ]
    needed = {need.task for task in tasks if task.state not in SETTLED for need in task.needs}
    done = [task.id for task in tasks if task.state is TaskState.DONE and task.id in needed]
    if done:
        rows.append(f"what these left on their hosts, others still need it: {_names(done)}")
    return rows


def _unknowns(view: View, tasks: list[Task]) -> list[str]:
    rows = silent_hosts(view.snapshot)
    rows += [
        f"`{task.id}`: {quoted(task.reason)}" for task in tasks if task.state is TaskState.ATTENTION
    ]
    return rows


def silent_hosts(snapshot: Snapshot) -> list[str]:
    """Which machines do not answer, or show another key, in a line each."""
    rows = []
    for host in snapshot.hosts:
        if host.unreachable_since:
            key = other_key(snapshot, host.role)
            shows = f"it shows another host key, {key}" if key else "its jobs may well run"
            rows.append(
                f"host {host.role} has not answered since {when(host.unreachable_since)}; {shows}"
            )
    return rows


def _waiting(snapshot: Snapshot, tasks: list[Task]) -> list[str]:
    gates = [
        f"`{task.id}`: {one_line(task.reason)}" for task in tasks if task.state is TaskState.GATED
    ]
    asked = [
        f"`runbook confirm {row.id}`: {row.asked_by} wants to {row.verb} `{row.task}` "
        f"({quoted(row.reason)})"
        for row in open_requests(snapshot)
    ]
    return [*gates, *asked]


def _money(snapshot: Snapshot, tasks: list[Task]) -> list[str]:
    """What ends when, and what is spent as of this revision, which says nothing of later."""
    rows = [
        f"`{task.id}` is stopped when it has run for {limit_s / 3600:g} h, counted from "
        f"{when(attempt.started_at or attempt.created_at)}"
        for task in tasks
        if _runs(task)
        and (attempt := snapshot.latest_attempt(task.id))
        and (limit_s := (attempt.detail.get("job") or {}).get("time_limit_s"))
    ]
    rented = any(host.ends_at or host.usd_per_hour is not None for host in snapshot.hosts)
    if rented or "budget" in snapshot.meta.extra:
        from runbook.costs import told  # only where money and time are a topic

        rows += told(snapshot, _as_of(snapshot))
    return rows


def _as_of(snapshot: Snapshot) -> str:
    """When this revision came about, as far as the graph itself says."""
    times = [
        *(task.since for task in snapshot.tasks),
        *(note.at for note in snapshot.notes),
        *(attempt.ended_at or attempt.created_at for attempt in snapshot.attempts),
        *(rental.until or rental.since for rental in snapshot.rentals),
    ]
    return max(times)


def _wrong_line(task: Task) -> str:
    return f"`{task.id}` {task.state}: {quoted(task.reason)}; look: `runbook logs {quote(task.id)}`"


def _numbers(task: Task) -> dict[str, float]:
    return {
        key: value
        for key, value in task.out.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _result_line(task: Task) -> str:
    first = list(_numbers(task).items())[:6]
    shown = (
        f"{key} {value:,}" if value == value // 1 else f"{key} {value:g}" for key, value in first
    )
    return f"`{task.id}`: {', '.join(shown)}"


def _note_line(note: Note) -> str:
    about = f" on `{note.task}`" if note.task else ""
    return f"{when(note.at)} {note.actor}{about}: {one_line(note.text)}"


def _worth_telling(event: Event) -> bool:
    """Moves that somebody or something made; blocked and ready only follow from them."""
    return event.kind == "task.moved" and event.payload.get("to") not in ("blocked", "ready")


def _event_line(event: Event) -> str:
    reason = event.payload.get("reason")
    why = f": {quoted(str(reason))}" if reason else ""
    moved = f"`{event.subject}` {event.payload.get('to')} by {event.actor}"
    return f"{event.seq} {when(event.at)} {moved}{why}"


def when(iso: str) -> str:
    """A stored time, to the minute."""
    return f"{iso[:10]} {iso[11:16]}Z"


def one_line(text: str) -> str:
    """Text of people on one line, bounded."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else flat[: LONGEST - 3] + "..."


def quoted(text: str) -> str:
    """Text that may come from a host: inside a code span that it cannot leave."""
    return f"`{one_line(text).replace('`', chr(39))}`" if text.strip() else "no reason given"
