"""Another boot, or another machine, behind a host role: recorded, with what became void by it.

A reboot empties memory: what was checked in /dev/shm, on a port or in a process no longer holds. A
rebuilt machine, or another one bound to the role, has nothing of what was made. Done tasks turn
stale, never undone: `runbook verify` asks their checks again and brings back what still holds.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from runbook.engine.events import Problem
from runbook.reasons import MOVED, REBOOTED, REPLACED, done_checks
from runbook.steps import STEP_TYPES
from state import HostBinding, Snapshot, Task, TaskKind, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remote import Host, Identity
    from runbook.engine.world import World
    from state import HostEpoch, Tx

IN_MEMORY = ("/dev/shm/", "/run/")  # noqa: S108 (looked for in paths, not written to)
LIVING = frozenset({"port", "http", "http_generate", "http_identity", "process_alive"})


def see_host(world: World, snapshot: Snapshot, role: str | None, host: Host | None) -> str | None:
    """The host's epoch; a new one is recorded with its facts before anything is started on it."""
    if role is None or host is None:
        return None
    identity = host.identity()
    binding = snapshot.host(role)
    if identity.epoch != binding.epoch or not binding.facts:
        meet(world, snapshot, role, identity, host.facts(look_at=[binding.work]))
    return identity.epoch


def meet(
    world: World, snapshot: Snapshot, role: str, identity: Identity, facts: Mapping[str, Any]
) -> None:
    """Records another epoch and says what became void."""
    with world.store.write(lease=world.lease) as tx:
        void = settle(tx, snapshot, role, identity, facts, before=snapshot.host(role))
    if void:
        hint = "What still holds comes back with `runbook verify`."
        world.emit(Problem(text=f"{role}: no longer done: {', '.join(void)}", hint=hint))


def settle(
    tx: Tx,
    snapshot: Snapshot,
    role: str,
    identity: Identity,
    facts: Mapping[str, Any],
    *,
    before: HostBinding | None,
    now: HostBinding | None = None,
) -> tuple[str, ...]:
    """Records what answers for a role; the done tasks that became void by it, now stale.

    Args:
        before: the binding until now.
        now: the new binding, where a person just bound one.
    """
    last = tx.last_epoch(role)
    change = change_of(last, before, identity, now)
    tx.seen_host(role, epoch=identity.epoch, facts=facts, identity=asdict(identity))
    if change is None:
        return ()
    names = tuple(task.id for task in void_tasks(snapshot, role, change))
    for name in names:
        reason = f"{role} {change}; `runbook verify` says whether it still holds"
        tx.move_task(name, TaskState.STALE, expect={TaskState.DONE}, reason=reason)
    return names


def change_of(
    last: HostEpoch | None,
    before: HostBinding | None,
    identity: Identity,
    now: HostBinding | None,
) -> str | None:
    """What happened to the machine behind a role since it was met last, or nothing."""
    if last is None:
        return None
    if last.epoch == identity.epoch:
        moved = before and now and (before.root, before.work) != (now.root, now.work)
        return MOVED if moved else None
    known = last.identity
    same = bool(known) and all(
        known.get(name) == getattr(identity, name) for name in ("machine_id", "host_key")
    )
    return REBOOTED if same else REPLACED


def void_tasks(snapshot: Snapshot, role: str, change: str) -> Iterator[Task]:
    """Done tasks of a role whose results a change took away."""
    for task in snapshot.tasks:
        if task.role != role or task.state is not TaskState.DONE or task.removed:
            continue
        if task.kind is not TaskKind.ONCE or not STEP_TYPES[task.step].leaves_on_host:
            continue
        if change != REBOOTED or rests_on_memory(snapshot, task):
            yield task


def rests_on_memory(snapshot: Snapshot, task: Task) -> bool:
    """Whether its arguments, checks or results name memory or processes, which no reboot leaves."""
    attempt = snapshot.latest_attempt(task.id)
    checks = done_checks(snapshot, attempt)
    if any(LIVING & set(check) for check in checks):
        return True
    said = _texts([checks, dict(task.out), task.definition.get("with")])
    return any(place in text for text in said for place in IN_MEMORY)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
