"""What the board shows, as data: rows, counts, names. Pure functions over a `View`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from runbook.families import Family, folded
from runbook.placement import where_it_runs
from runbook.reasons import link_word
from runbook.tui import format as fmt
from runbook.views import phase_title
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from datetime import datetime

    from runbook.views import View
    from state.model import Attempt, HostBinding, Task

RUNNING = frozenset({"active", "starting", "verifying", "draining"})
OPEN = RUNNING | {"serving", "unhealthy"}
"""States in which something of ours lives on a host."""
WAITING = frozenset({"gated"})
TROUBLE = frozenset({"failed", "stopped", "unhealthy", "attention", "stale"})
FINISHED = frozenset({"done", "skipped"})
ANSWERED = frozenset({"exited", "collecting", "verified", "check_failed", "stopped"})
"""States of attempts that are known by an answer."""
RETRIABLE = frozenset({"failed", "attention", "stale", "skipped"})
SKIPPABLE = frozenset({"draft", "blocked", "ready", "gated", "failed", "attention", "stale"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRow:
    """The head of a phase."""

    title: str
    finished: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task as the list shows it."""

    task: str
    title: str
    state: str
    word: str
    aside: str
    """A percentage while it runs, how long it took afterwards."""


FAMILY = "[]"
"""Behind the name of a family, its key in the list: no task is called that."""
MANY = 3
"""A family of more than so many is one line until it is unfolded; a smaller one the reverse."""
Row: TypeAlias = "PhaseRow | Family | Task"


def rows(
    view: View, *, needle: str = "", trouble: bool = False, toggled: Collection[str] = ()
) -> list[Row]:
    """The rows in position order, under their phases; phases without a match are left out.

    Args:
        toggled: families that a person folded or unfolded. What was searched for is never folded.
    """
    phases: dict[str, list[Task]] = {}
    for task in view.snapshot.tasks:
        if not task.removed:
            phases.setdefault(task.phase, []).append(task)
    out: list[Row] = []
    for phase, tasks in phases.items():
        shown = [task for task in tasks if _matches(task, needle, trouble)]
        if shown:
            finished = sum(task.state in FINISHED for task in tasks)
            title = fmt.clean(phase_title(view.snapshot, phase))
            out.append(PhaseRow(title=title, finished=finished, total=len(tasks)))
            out.extend(shown if needle or trouble else _families(shown, toggled))
    return out


def _families(tasks: Iterable[Task], toggled: Collection[str]) -> Iterator[Row]:
    for one in folded(tasks):
        if not isinstance(one, Family) or is_folded(one, toggled):
            yield one
        else:
            yield from one.tasks


def is_folded(family: Family, toggled: Collection[str]) -> bool:
    """Whether a family is shown as one line."""
    return (len(family.tasks) > MANY) != (family.name in toggled)


def key_of(row: Row) -> str | None:
    """What names a row under the cursor; a phase has none."""
    if isinstance(row, PhaseRow):
        return None
    return f"{row.name}{FAMILY}" if isinstance(row, Family) else row.id


def families(view: View) -> dict[str, Family]:
    """Every family by the name that the runbook file gives it."""
    return {one.name: one for one in folded(view.snapshot.tasks) if isinstance(one, Family)}


def task_row(view: View, task: Task, now: datetime) -> TaskRow:
    """One task as the list shows it."""
    return TaskRow(
        task=task.id,
        title=fmt.clean(task.title) or task.id,
        state=told_state(task),
        word=word(view, task),
        aside=_aside(view, task, now),
    )


def word(view: View, task: Task) -> str:
    """The state in one word; `unreachable` lies over it while nobody can ask the host."""
    host = host_of(view, task)
    if host is not None and host.unreachable_since and task.state in OPEN:
        return link_word(view.snapshot, host.role)
    return told_state(task)


def host_of(view: View, task: Task) -> HostBinding | None:
    """The machine on which a task runs, or that its role is bound to."""
    role = where_it_runs(view.snapshot, task)
    return next((host for host in view.snapshot.hosts if host.role == role), None)


def seen(view: View, role: str | None) -> str | None:
    """When the machine behind a role last answered anybody we know of."""
    snapshot = view.snapshot
    times = [host.seen_at for host in snapshot.hosts if host.role == role and host.seen_at]
    for name, live in view.live.items():
        task = snapshot.by_id.get(name)
        if task is not None and task.role == role:
            times.append(live.seen_at)
    here = [attempt for attempt in snapshot.attempts if attempt.host == role]
    times += [attempt.started_at for attempt in here if attempt.started_at][-1:]
    # Nobody but the machine says how an attempt ended.
    times += [one.ended_at for one in here if one.ended_at and one.state in ANSWERED]
    boots = {host.epoch for host in snapshot.hosts if host.role == role and host.epoch}
    asked = (check for check in snapshot.checks if check.epoch in boots)
    times += [check.at for check in asked if check.verdict != "unknown"]
    return max(times, default=None)


def counts(view: View) -> dict[str, int]:
    """How many tasks are in each state."""
    found: dict[str, int] = {}
    for task in view.snapshot.tasks:
        if not task.removed:
            state = told_state(task)
            found[state] = found.get(state, 0) + 1
    return found


def driver(view: View, *, here: bool) -> str:
    """Who advances the graph, in a word or two."""
    if here:
        return "runs here"
    if view.engine:
        return f"run by {fmt.clean(view.engine)}"
    left = any(task.state in OPEN for task in view.snapshot.tasks)
    return "unattended" if left else "idle"


def progress_of(view: View, task: str) -> Mapping[str, Any] | None:
    """The newest progress line anybody told us of."""
    live, attempt = view.live.get(task), view.snapshot.latest_attempt(task)
    if live is None or attempt is None or live.attempt != attempt.id:
        return None  # of an attempt before: the file of observations is not part of the graph
    return live.progress


def fraction(progress: Mapping[str, Any] | None) -> float | None:
    """Done over total, when both are numbers."""
    if progress is None:
        return None
    done, total = progress.get("done"), progress.get("total")
    if not isinstance(done, (int, float)) or not isinstance(total, (int, float)) or total <= 0:
        return None
    return max(0.0, min(1.0, done / total))


def took(attempt: Attempt | None, now: datetime) -> float | None:
    """Seconds an attempt has been running, or ran."""
    if attempt is None:
        return None
    return fmt.between(attempt.started_at or attempt.created_at, attempt.ended_at or now)


def first_task(view: View) -> str | None:
    """Where a cursor that was never moved belongs."""
    tasks = [task for task in view.snapshot.tasks if not task.removed]
    for states in (RUNNING, WAITING | TROUBLE):
        found = next((task.id for task in tasks if task.state in states), None)
        if found is not None:
            return found
    if view.next.task is not None and any(task.id == view.next.task for task in tasks):
        return view.next.task
    found = next((task.id for task in tasks if task.state not in FINISHED), None)
    return found or (tasks[-1].id if tasks else None)


def _matches(task: Task, needle: str, trouble: bool) -> bool:
    if trouble and task.state not in TROUBLE | WAITING:
        return False
    wanted = needle.casefold().split()
    where = f"{task.id} {task.title} {task.step} {task.role or ''} {told_state(task)}".casefold()
    return all(part in where for part in wanted)


def _aside(view: View, task: Task, now: datetime) -> str:
    if task.state in RUNNING:
        share = fraction(progress_of(view, task.id))
        if share is not None:
            return f"{share:.0%}"
    if task.state in {"draft", "blocked", "ready", "skipped"}:
        return ""
    attempt = view.snapshot.latest_attempt(task.id)
    if attempt is not None:
        return fmt.duration(took(attempt, now))
    if task.state == "gated":
        return fmt.duration(fmt.between(task.since, now))
    return ""
