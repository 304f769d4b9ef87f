"""Secrets on their way to an attempt: taken, noted by name and fingerprint, handed over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runbook.engine.events import Info
from runbook.grants import issue
from runbook.secrets import fingerprint, secrets_of
from state.references import saw_secret

if TYPE_CHECKING:
    from remote import JobSpec
    from runbook.engine.world import World
    from state import Attempt, Snapshot, Task


def take_secrets(world: World, snapshot: Snapshot, task: Task) -> None:
    """All that the task asks for, before anything of its start is recorded.

    Raises:
        CannotStart: one of them cannot be had on this machine.
    """
    names = task.definition.get("secrets") or ()
    taken = world.hosts.secrets.take(snapshot, names)
    known = {secret.name: secret.fingerprint for secret in snapshot.secrets}
    news = {}
    for name, value in taken.items():
        found = fingerprint(value, like=known[name])
        if found != known[name]:
            news[name] = found
            if known[name]:
                world.emit(Info(text=f"{task.id}: the secret {name} is another than last time."))
    if news:
        with world.store.write(lease=world.lease) as tx:
            for name, found in news.items():
                saw_secret(tx, name, found)


def with_secrets(world: World, attempt: Attempt, spec: JobSpec) -> JobSpec:
    """The launch with its secrets, and with what is issued for it alone.

    Raises:
        CannotStart: this machine does not have them, or they were refused to it.
    """
    names, grants = secrets_of(attempt), attempt.detail["job"].get("grants") or ()
    if not names and not grants:
        return spec
    taken = world.hosts.secrets.take(world.store.snapshot(), names)
    for name, value in issue(grants, taken).items():
        taken[name] = value
        world.hosts.secrets.redactor.add(name, value)
    return replace(spec, secrets=taken)
