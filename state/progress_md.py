"""PROGRESS.md as a pure function of a snapshot: the same revision gives the same bytes.

No clock, no durations that move, no random ids: a workspace that was only just initialised
renders alike on every machine. What is said by hosts is quoted (`state.markdown`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from state.journal import canonical
from state.markdown import code, embedded, one_line, prose
from state.model import TaskState as T
from state.telling import STOPPED, told_state
from state.transitions import PENDING, RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from state.model import Attempt, CheckRun, Event, Note, Snapshot, Task

COLUMNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("done", frozenset({T.DONE})),
    ("running", RUNNING),
    ("ready", frozenset({T.READY})),
    ("gated", frozenset({T.GATED})),
    ("waiting", frozenset({T.DRAFT, T.BLOCKED})),
    ("needs a look", frozenset({T.FAILED, STOPPED, T.STALE, T.ATTENTION})),
    ("skipped", frozenset({T.SKIPPED})),
)


def render(
    snapshot: Snapshot,
    *,
    brief: str = "",
    events: Sequence[Event] = (),
    phases: Mapping[str, str] | None = None,
    account: Sequence[tuple[str, ...]] = (),
) -> str:
    """The managed part of PROGRESS.md, ending in one newline.

    Args:
        phases: their titles.
        account: rows of what, hours and money, allowed and spent as of this revision.
    """
    titles = phases or {}
    blocks = [
        _head(snapshot),
        _section("Now", embedded(brief)),
        _section("Progress", _table_of_phases(snapshot, titles)),
        _section("Tasks", "\n\n".join(_checklist(snapshot, titles))),
        _section("Decisions", _notes(note for note in snapshot.notes if note.decision)),
        _section(
            "Notes from the log", _notes(note for note in snapshot.notes if not note.decision)
        ),
        _section("Artifacts", _artifacts(snapshot)),
        _section("Budget", _account(account)),
        _section("Hosts", _hosts(snapshot)),
        _section("Recent events", _events(events)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _head(snapshot: Snapshot) -> str:
    meta = snapshot.meta
    source = f"Runbook {code(meta.name)}" if meta.name else "No runbook is loaded yet"
    if meta.runbook_hash:
        source += f", digest {code(meta.runbook_hash[:16])}"
    lines = [
        f"# {prose(meta.title or meta.name or 'Runbook')}",
        "",
        f"> {source}, revision {snapshot.revision}.",
        "> Written by `runbook` and never read back as state: an edit up to the end marker becomes",
        "> a note. The part below it is yours.",
    ]
    if meta.goal.strip():
        lines += ["", f"**Goal.** {prose(meta.goal, 2000)}"]
    return "\n".join(lines)


def _current(snapshot: Snapshot) -> list[Task]:
    return [task for task in snapshot.tasks if not task.removed]


def _by_phase(tasks: Iterable[Task]) -> Iterator[tuple[str, list[Task]]]:
    """Phases in the order in which the file first names them."""
    order: dict[str, list[Task]] = {}
    for task in tasks:
        order.setdefault(task.phase, []).append(task)
    yield from order.items()


def _table_of_phases(snapshot: Snapshot, titles: Mapping[str, str]) -> str:
    tasks = _current(snapshot)
    if not tasks:
        return ""
    names = [name for name, _ in COLUMNS]
    rows = [
        f"| phase | {' | '.join(names)} | all |",
        f"|---|{'--:|' * (len(names) + 1)}",
    ]
    for phase, members in _by_phase(tasks):
        rows.append(_count_row(prose(titles.get(phase, phase)), members))
    rows.append(_count_row("**all**", tasks))
    return "\n".join(rows)


def _count_row(label: str, tasks: Sequence[Task]) -> str:
    counts = Counter(told_state(task) for task in tasks)
    cells = [str(sum(counts[state] for state in states) or "") for _, states in COLUMNS]
    return f"| {label} | {' | '.join(cells)} | {len(tasks)} |"


def _checklist(snapshot: Snapshot, titles: Mapping[str, str]) -> Iterator[str]:
    for phase, members in _by_phase(_current(snapshot)):
        lines = [f"### {prose(titles.get(phase, phase))}", ""]
        for task in members:
            lines.extend(_task_lines(snapshot, task))
        yield "\n".join(lines)
    removed = [task for task in snapshot.tasks if task.removed]
    if removed:
        lines = ["### No longer in the runbook", ""]
        for task in removed:
            lines.extend(_task_lines(snapshot, task))
        yield "\n".join(lines)


def _task_lines(snapshot: Snapshot, task: Task) -> Iterator[str]:
    mark = "x" if task.state is T.DONE else " "
    attempt = snapshot.latest_attempt(task.id)
    facts = [f"**{told_state(task)}**"]
    where = attempt.host if attempt else task.role
    if where:
        facts.append(f"on {code(where)}")
    if task.state not in PENDING or attempt:
        facts.append(f"since {moment(task.since)}")
    yield f"- [{mark}] {code(task.id)} {prose(task.title)}: {', '.join(facts)}"
    if task.reason:
        yield f"  - why: {code(task.reason)}"
    if attempt:
        yield f"  - {_attempt_line(attempt)}"
    for check in sorted(snapshot.checks_of(task.id), key=lambda run: (run.purpose, run.name)):
        yield f"  - {_check_line(check)}"


def _attempt_line(attempt: Attempt) -> str:
    facts = [f"attempt {attempt.number}: {attempt.state.value}"]
    if attempt.cls is not None:
        facts.append(attempt.cls.value)
    if attempt.exit_code is not None:
        facts.append(f"exit code {attempt.exit_code}")
    if attempt.signal is not None:
        facts.append(f"signal {attempt.signal}")
    if began := attempt.started_at or (attempt.ended_at and attempt.created_at):
        facts.append(f"from {moment(began)}")  # what ended between two looks was never seen to run
    if attempt.ended_at:
        facts.append(f"to {moment(attempt.ended_at)}")
    return ", ".join(facts)


def _check_line(check: CheckRun) -> str:
    evidence = f", {code(canonical(check.evidence))}" if check.evidence else ""
    return (
        f"{check.purpose} check {code(check.name)}: {check.verdict}{evidence}, {moment(check.at)}"
    )


def _notes(notes: Iterable[Note]) -> str:
    lines = []
    for note in notes:
        about = f" on {code(note.task)}" if note.task else ""
        lines.append(f"- {moment(note.at)} {code(note.actor)}{about}: {prose(note.text, 2000)}")
    return "\n".join(lines)


def _artifacts(snapshot: Snapshot) -> str:
    if not snapshot.artifacts:
        return ""
    rows = ["| task | where | size | sha256 |", "|---|---|--:|---|"]
    rows += [
        f"| {code(item.task)} | {code(item.uri, 500)} | {size(item.size)} | {code(item.sha256)} |"
        for item in sorted(snapshot.artifacts, key=lambda item: (item.at, item.id))
    ]
    return "\n".join(rows)


def _account(rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = ["| | hours | USD |", "|---|--:|--:|"]
    lines += [f"| {' | '.join(prose(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _hosts(snapshot: Snapshot) -> str:
    lines = []
    for host in snapshot.hosts:
        machine = "this machine" if host.kind == "local" else f"{host.user}@{host.address}"
        port = f":{host.port}" if host.kind == "ssh" else ""
        line = f"- {code(host.role)}: {code(machine + port)}"
        if host.unreachable_since:
            line += f", unreachable since {moment(host.unreachable_since)} (that is not dead)"
        lines.append(line)
    return "\n".join(lines)


def _events(events: Sequence[Event]) -> str:
    return "\n".join(
        f"- {event.seq} {moment(event.at)} {code(event.actor)} {code(event.kind)}"
        f" {code(event.task or event.subject)}"  # an attempt id says nothing to a reader
        for event in events
    )


def moment(text: str) -> str:
    """A stored time to the second."""
    return one_line(f"{text[:10]} {text[11:19]} UTC")


def size(count: int) -> str:
    """1536 -> `1.5 KiB (1,536)`; exact bytes below one KiB."""
    if count < 1024:
        return f"{count} B"
    scaled = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        scaled /= 1024
        if scaled < 1024 or unit == "TiB":
            break
    return f"{scaled:.1f} {unit} ({count:,})"
