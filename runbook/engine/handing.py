"""Secrets on their way to an attempt: taken, noted by name and fingerprint, handed over."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runbook.engine.events import Info
from runbook.grants import Issued, issue
from runbook.secrets import fingerprint, secrets_of
from state.references import saw_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote import JobSpec
    from runbook.engine.world import World
    from state import Attempt, Snapshot, Task


def take_secrets(
    world: World, snapshot: Snapshot, task: Task, grants: Sequence[Mapping[str, Any]]
) -> Issued:
    """All that the task asks for, before anything of its start is recorded; what was issued for it.

    Raises:
        CannotStart: one of them cannot be had on this machine, or was refused to it.
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
    return issue(grants, taken)


def with_secrets(
    world: World, attempt: Attempt, spec: JobSpec, issued: Issued | None = None
) -> JobSpec:
    """The launch with its secrets, and with what is issued for it alone: anew for a later client.

    Raises:
        CannotStart: this machine does not have them, or they were refused to it.
    """
    names, grants = secrets_of(attempt), attempt.detail["job"].get("grants") or ()
    if not names and not grants:
        return spec
    secrets = world.hosts.secrets
    taken = secrets.take(world.store.snapshot(), names)
    issued = issue(grants, taken) if issued is None else issued
    hide(world, issued)
    return replace(spec, secrets={**taken, **issued.environment})


def hide(world: World, issued: Issued) -> None:
    """Whatever a host says from now on is searched for these."""
    for name, value in issued.values.items():
        world.hosts.secrets.redactor.add(name, value)
