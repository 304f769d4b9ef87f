"""One look at everything that may run, and what it changed. Nothing is started or stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote import RemoteError
from runbook.engine.observe import live_attempts, observe
from runbook.errors import CannotStart, RunbookError
from runbook.live import read_live, write_live
from runbook.placement import where_it_runs
from runbook.retries import after_loss
from state import Attempt, AttemptState, Snapshot, Task, TaskState
from state.graph import family_of

if TYPE_CHECKING:
    from runbook.engine.world import World

CHECKS_S = 960.0
"""How long checks that were begun are waited for."""
UNSURE = frozenset({AttemptState.LOST, AttemptState.STOP_INCOMPLETE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An attempt that was looked at: what was believed, and what is known now."""

    task: str
    attempt: str
    host: str
    before: str
    after: str
    found: str
    """What the host said, or why it said nothing."""
    then: str
    """Why the next run tries it again by itself, once nothing of it is left; empty: it does not."""

    @property
    def changed(self) -> bool:
        """Whether the look changed anything."""
        return self.before != self.after


def look_again(world: World, name: str = "") -> tuple[Seen, ...]:
    """Polls every host with attempts that may run, and takes each one step on."""
    before = world.store.snapshot()
    looked = chosen(before, name)
    # A narrowed view of the world: observe() sees only what was asked for.
    narrowed = _only(before, {task.id for task in looked})
    observe(world, narrowed)
    until = time.monotonic() + CHECKS_S
    while any(world.background.busy(a.id) for _, a in live_attempts(narrowed)):
        if time.monotonic() > until:
            break
        world.background.wait()
        world.background.collect(world)
    after = world.store.snapshot()
    _leave_for_others(world, after)
    return tuple(_seen(world, before, after, task) for task in looked)


def _leave_for_others(world: World, snapshot: Snapshot) -> None:
    """How old the facts are is told by what was seen last, whoever looked."""
    known = {**read_live(world.workspace), **world.live}
    running = {task.id for task, _ in live_attempts(snapshot)}
    write_live(world.workspace, {task: known[task] for task in known if task in running})


def chosen(snapshot: Snapshot, name: str) -> list[Task]:
    """The tasks that are looked at: those of `name` of which something may run."""
    known = {task.id for task in snapshot.tasks} | {family_of(task.id) for task in snapshot.tasks}
    roles = {host.role for host in snapshot.hosts}
    if name and name not in known | roles:
        raise RunbookError(
            f"`{name}` is neither a task nor a host role.",
            hint="`runbook status` lists tasks, `runbook host list` hosts.",
        )
    live = {task.id for task, _ in live_attempts(snapshot)}
    found = []
    for task in snapshot.tasks:
        where = where_it_runs(snapshot, task)
        asked = not name or name in (task.id, family_of(task.id), where)
        if asked and (task.id in live or _is_unsure(snapshot, task)):
            found.append(task)
    return found


def _is_unsure(snapshot: Snapshot, task: Task) -> bool:
    latest = snapshot.latest_attempt(task.id)
    return task.state is TaskState.ATTENTION and latest is not None and latest.state in UNSURE


def _only(snapshot: Snapshot, names: set[str]) -> Snapshot:
    tasks = tuple(task for task in snapshot.tasks if task.id in names)
    attempts = tuple(attempt for attempt in snapshot.attempts if attempt.task in names)
    fields = {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__}
    return Snapshot(**{**fields, "tasks": tasks, "attempts": attempts})


def _seen(world: World, before: Snapshot, after: Snapshot, task: Task) -> Seen:
    attempt = before.latest_attempt(task.id)
    assert attempt is not None
    now = after.latest_attempt(task.id)
    assert now is not None
    return Seen(
        task=task.id,
        attempt=attempt.id,
        host=attempt.host,
        before=f"{task.state.value}, {attempt.state.value}",
        after=f"{after.task(task.id).state.value}, {now.state.value}",
        found=_found(world, after, attempt),
        then=after_loss(after, after.task(task.id)) or "",
    )


def _found(world: World, snapshot: Snapshot, attempt: Attempt) -> str:
    if not attempt.host:
        return "an action of the operator's side"
    try:
        status = world.host_with(snapshot, attempt).poll([attempt.id])[attempt.id]
    except (RemoteError, CannotStart) as error:
        return f"unknown: {error}"
    return f"{status.state}{f': {status.reason}' if status.reason else ''}"
