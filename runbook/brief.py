"""The hand-off text: what a person or an agent who knows nothing must know, from one revision."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from state import Attempt, Event, Note, Task, TaskKind, TaskState
from state.transitions import RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runbook.views import View

LAST_EVENTS = 8
LAST_NOTES = 5
EDITED = "runbook.yaml was edited since: see `runbook plan`, take it over with `runbook init`."
LONGEST = 160


def render_brief(view: View, events: Iterable[Event] = (), *, titled: bool = True) -> str:
    """Markdown, bounded, in a stable order. Everything a host said is quoted.

    Args:
        titled: with title and goal; PROGRESS.md has them above.
    """
    snapshot = view.snapshot
    tasks = [task for task in snapshot.tasks if not task.removed]
    counts = Counter(task.state.value for task in tasks)
    said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    title = one_line(snapshot.meta.title or snapshot.meta.name)
    head = [f"# {title}", "", f"Goal: {' '.join(snapshot.meta.goal.split()) or 'not stated'}", ""]
    lines = [
        *(head if titled else ()),
        f"At revision {snapshot.revision}: {said}.",
        "",
        f"**Next safe action:** {_next(view)}",
        *(("", f"**{EDITED}**") if view.edited else ()),
    ]
    lines += _section("Running", [_running_line(view, t) for t in tasks if t.state in RUNNING])
    lines += _section("Do not touch", _hands_off(view, tasks))
    lines += _section("Unknown", _unknowns(view, tasks))
    lines += _section(
        "Failed or stale",
        [
            f"`{task.id}` {task.state}: {quoted(task.reason)}; look: `runbook logs {task.id}`"
            for task in tasks
            if task.state in (TaskState.FAILED, TaskState.STALE)
        ],
    )
    lines += _section(
        "Last results", [_result_line(t) for t in tasks if t.out and _numbers(t)][-6:]
    )
    lines += _section("Decisions", [_note_line(n) for n in snapshot.notes if n.decision])
    notes = [_note_line(note) for note in snapshot.notes if not note.decision]
    lines += _section("Notes", notes[-LAST_NOTES:])
    recent = [event for event in events if _worth_telling(event)][-LAST_EVENTS:]
    lines += _section("Recently", [_event_line(event) for event in recent])
    return "\n".join(lines) + "\n"


def _next(view: View) -> str:
    if not view.next.command:
        return view.next.reason + "."
    return f"`{view.next.command}` ({one_line(view.next.reason)})"


def _section(title: str, rows: list[str]) -> list[str]:
    return ["", f"**{title}**", "", *(f"- {row}" for row in rows)] if rows else []


def _running_line(view: View, task: Task) -> str:
    attempt = view.snapshot.latest_attempt(task.id)
    where = f" on {attempt.host}, attempt {attempt.number}" if attempt and attempt.host else ""
    logs = f"look: `runbook logs {task.id}`"
    return f"`{task.id}` {task.state}{where}; {logs}, stop: `runbook stop {task.id}`"


def _hands_off(view: View, tasks: list[Task]) -> list[str]:
    rows = []
    for task in tasks:
        attempt = view.snapshot.latest_attempt(task.id)
        if task.state in RUNNING and attempt is not None and attempt.detail.get("job"):
            rows.append(f"the processes and files of `{task.id}`{_ports(attempt)}")
    return rows


def _ports(attempt: Attempt) -> str:
    ports = attempt.detail["job"].get("ports") or []
    return f", ports {', '.join(map(str, ports))}" if ports else ""


def _unknowns(view: View, tasks: list[Task]) -> list[str]:
    rows = [
        f"host {host.role} has not answered since {host.unreachable_since}; its jobs may well run"
        for host in view.snapshot.hosts
        if host.unreachable_since
    ]
    rows += [
        f"`{task.id}`: {quoted(task.reason)}" for task in tasks if task.state is TaskState.ATTENTION
    ]
    return rows


def _numbers(task: Task) -> dict[str, float]:
    return {
        key: value
        for key, value in task.out.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _result_line(task: Task) -> str:
    shown = ", ".join(f"{key} {value:g}" for key, value in list(_numbers(task).items())[:6])
    kind = " (service)" if task.kind is TaskKind.SERVICE else ""
    return f"`{task.id}`{kind}: {shown}"


def _note_line(note: Note) -> str:
    about = f" on `{note.task}`" if note.task else ""
    return f"{note.at} {note.actor}{about}: {one_line(note.text)}"


def _worth_telling(event: Event) -> bool:
    """Moves that somebody or something made; blocked and ready only follow from them."""
    return event.kind == "task.moved" and event.payload.get("to") not in ("blocked", "ready")


def _event_line(event: Event) -> str:
    reason = event.payload.get("reason")
    why = f": {quoted(str(reason))}" if reason else ""
    return (
        f"{event.seq} {event.at} `{event.subject}` {event.payload.get('to')} by {event.actor}{why}"
    )


def one_line(text: str) -> str:
    """Text of people on one line, bounded."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else flat[: LONGEST - 3] + "..."


def quoted(text: str) -> str:
    """Text that may come from a host: inside a code span that it cannot leave."""
    return f"`{one_line(text).replace('`', chr(39))}`" if text.strip() else "no reason given"
