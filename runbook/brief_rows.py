"""The rows of a brief, each in a line of Markdown. What a host may have said stands in quotes."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from runbook.history import moved_to
from runbook.reasons import other_key, stop_pending, wrong_answer
from runbook.requests import open_requests
from state import AttemptState, Claim, Event, Note, Snapshot, Task, TaskKind, TaskState
from state.graph import descendants
from state.telling import told_state
from state.transitions import RUNNING

if TYPE_CHECKING:
    from runbook.views import View

LONGEST = 160
SETTLED = frozenset({TaskState.DONE, TaskState.SKIPPED})


def about_task(view: View, task: Task) -> tuple[str, ...]:
    snapshot = view.snapshot
    after = list(descendants(snapshot, task.id))
    attempt = snapshot.latest_attempt(task.id)
    lines = [
        f"**Task `{task.id}`: {one_line(task.title)}**",
        "",
        (
            f"- {told_state(task)}{_because(task)}; step `{task.step}`, "
            f"role `{task.role or 'none'}`, phase `{task.phase}`"
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
    lines += [f"- {note_line(note)}" for note in snapshot.notes if note.task == task.id]
    return (*lines, f"- look: `runbook status {quote(task.id)}`, `runbook logs {quote(task.id)}`")


def _because(task: Task) -> str:
    return f" ({quoted(task.reason)})" if task.reason else ""


def _names(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:12])
    return (shown or "nothing") + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def runs(task: Task) -> bool:
    return task.state in RUNNING


def running_line(view: View, task: Task) -> str:
    attempt = view.snapshot.latest_attempt(task.id)
    where = f" on {attempt.host}, attempt {attempt.number}" if attempt and attempt.host else ""
    logs = f"look: `runbook logs {quote(task.id)}`"
    if pending := stop_pending(view.snapshot, task):
        return f"`{task.id}` {task.state}{where}; {quoted(pending)}; {logs}"
    return f"`{task.id}` {task.state}{where}; {logs}, stop: `runbook stop {quote(task.id)}`"


def documents(view: View) -> list[str]:
    since = {"changed": ", **changed since it was listed**", "gone": ", **not there any more**"}
    return [
        f"{quoted(one.path)} {one_line(one.title)} "
        f"(sha256 {one.sha256[:12]}, listed {when(one.at)})"
        f"{since.get(view.documents.get(one.path, ''), '')}"
        for one in view.snapshot.documents
    ]


def claim_line(view: View, claim: Claim) -> str:
    what = "the whole run" if claim.subject == "run" else f"`{claim.subject}`"
    over = " (run out)" if view.claims and claim.subject not in view.claims else ""
    why = f": {quoted(claim.reason)}" if claim.reason else ""
    return (
        f"{what} by {claim.holder} since {when(claim.at)} for {claim.for_s / 60:g} min{over}{why}"
    )


def hands_off(view: View, tasks: list[Task]) -> list[str]:
    rows = []
    for task in tasks:
        attempt = view.snapshot.latest_attempt(task.id)
        if task.state in RUNNING and attempt is not None and attempt.detail.get("job"):
            held = [*task.resources, *(f"port {n}" for n in attempt.detail["job"]["ports"] or ())]
            holds = f", {', '.join(held)}" if held else ""
            rows.append(f"on {attempt.host}: the processes and files of `{task.id}`{holds}")
        elif task.state is TaskState.ATTENTION and attempt is not None:
            if attempt.state is AttemptState.NEVER_STARTED:  # ours; what held it is named
                rows.append(f"on {attempt.host}: what kept `{task.id}` from being started")
                continue
            rows.append(f"on {attempt.host}: whatever is left of `{task.id}`; it may still run")
    rows += [
        f"what {claim.holder} claimed: `{claim.subject}`"
        for claim in view.snapshot.claims
        if not view.claims or claim.subject in view.claims
    ]
    needed = {need.task for task in tasks if task.state not in SETTLED for need in task.needs}
    done = [
        task.id
        for task in tasks
        if task.state is TaskState.DONE and task.id in needed and task.kind is not TaskKind.MANUAL
    ]
    if done:
        rows.append(f"what these left on their hosts, others still need it: {_names(done)}")
    return rows


def unknowns(view: View, tasks: list[Task]) -> list[str]:
    rows = silent_hosts(view.snapshot)
    rows += [
        f"`{task.id}`: {quoted(task.reason)}" for task in tasks if task.state is TaskState.ATTENTION
    ]
    return rows


def silent_hosts(snapshot: Snapshot) -> list[str]:
    """Which machines do not answer, answer wrongly, or show another key, in a line each."""
    rows = []
    for host in snapshot.hosts:
        if host.unreachable_since:
            key, wrong = other_key(snapshot, host.role), wrong_answer(snapshot, host.role)
            does = "has answered wrongly" if wrong and not key else "has not answered"
            shows = f"it shows another host key, {key}" if key else "its jobs may well run"
            if wrong and not key:
                look = f"`runbook host shell {host.role}` looks there by hand"
                shows = f"{quoted(wrong)}; {shows}; {look}"
            rows.append(f"host {host.role} {does} since {when(host.unreachable_since)}; {shows}")
    return rows


def waiting(snapshot: Snapshot, tasks: list[Task]) -> list[str]:
    gates = [
        f"`{task.id}`: {one_line(task.reason)}" for task in tasks if task.state is TaskState.GATED
    ]
    asked = [
        f"`runbook confirm {row.id}`: {row.asked_by} wants to {row.verb} `{row.task}` "
        f"({quoted(row.reason)})"
        for row in open_requests(snapshot)
    ]
    return [*gates, *asked]


def money(snapshot: Snapshot, tasks: list[Task]) -> list[str]:
    """What ends when, and what is spent as of this revision, which says nothing of later."""
    rows = [
        f"`{task.id}` is stopped when it has run for {limit_s / 3600:g} h, counted from "
        f"{when(attempt.started_at or attempt.created_at)}"
        for task in tasks
        if runs(task)
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


def wrong_line(task: Task) -> str:
    return f"`{task.id}` {task.state}: {quoted(task.reason)}; look: `runbook logs {quote(task.id)}`"


def numbers(task: Task) -> dict[str, float]:
    return {
        key: value
        for key, value in task.out.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def result_line(task: Task) -> str:
    first = list(numbers(task).items())[:6]
    shown = (
        f"{key} {value:,}" if value == value // 1 else f"{key} {value:g}" for key, value in first
    )
    return f"`{task.id}`: {', '.join(shown)}"


def note_line(note: Note) -> str:
    about = f" on `{note.task}`" if note.task else ""
    return f"{when(note.at)} {note.actor}{about}: {one_line(note.text)}"


def worth_telling(event: Event) -> bool:
    """Moves that somebody or something made; blocked and ready only follow from them."""
    return event.kind == "task.moved" and event.payload.get("to") not in ("blocked", "ready")


def event_line(event: Event) -> str:
    reason = event.payload.get("reason")
    moved = f"{moved_to(event)} by {event.actor}"
    why = f": {quoted(str(reason))}" if reason and reason != moved else ""
    return f"{event.seq} {when(event.at)} `{event.subject}` {moved}{why}"


def when(iso: str) -> str:
    """A stored time, to the minute."""
    return f"{iso[:10]} {iso[11:16]}Z"


def one_line(text: str, longest: int = LONGEST) -> str:
    """Text of people on one line, bounded."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 3] + "..."


def quoted(text: str) -> str:
    """Text that may come from a host: inside a code span that it cannot leave."""
    return f"`{one_line(text).replace('`', chr(39))}`" if text.strip() else "no reason given"
