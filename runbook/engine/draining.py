"""Draining: a server that is to be restarted gets no new requests and answers what it has.

Whoever holds the graph does it, from what the graph says; an engine that dies half-way leaves a
task that drains, and the next one goes on with it.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING

from runbook.engine.load import ask_load
from runbook.engine.stopping import stop_beside
from runbook.reasons import DRAIN, RESTARTED_BY
from runbook.serving.health import Watched, load_text
from state import Attempt, Task, TaskState

if TYPE_CHECKING:
    from remote import CheckResult, Host
    from runbook.engine.world import World

DRAIN_EVERY_S = 1.0
SETTLE_S = 3.0
"""Clients look once a second; a server that has nothing to do now may get something until then."""


def drain(world: World, task: Task, attempt: Attempt) -> None:
    """Waits until a server that gets no new requests has answered what it has, then stops it."""
    now = time.monotonic()
    began = world.starting_since.setdefault(f"drain {attempt.id}", now)
    if now < world.next_look.get(attempt.id, 0.0) or not world.may_start:
        return
    world.next_look[attempt.id] = now + DRAIN_EVERY_S
    limit = limit_of(world, task, attempt)
    left, settled = limit - (now - began), now - began >= min(limit, SETTLE_S)

    def done(result: CheckResult) -> None:
        found = dict(result.evidence)
        known = world.watched.get(attempt.id, Watched())
        world.loads[attempt.id] = load_text(found, known)
        busy = found.get("running", 0) + found.get("queued", 0)
        if not settled or (busy and left > 0 and found.get("tokens") is not None):
            return
        current = world.store.snapshot().task(task.id)
        if current.state is not TaskState.DRAINING:
            return  # somebody stopped it meanwhile
        reason = task.reason
        if busy:
            reason += f"; {busy:g} requests were broken off"
        stop_beside(world, current, attempt, then=TaskState.READY, reason=reason)

    if attempt.detail.get("watch"):
        asked = {"probe": "none", "timeout_s": 5.0}
        before = partial(set_draining, attempt=attempt, on=True)
        ask_load(world, task, attempt, asked, done=done, before=before)
    else:
        stop_beside(world, task, attempt, then=TaskState.READY, reason=task.reason)


def limit_of(world: World, task: Task, attempt: Attempt) -> float:
    """How long it may take over what it has; nothing, for one that no restart asked to drain."""
    kept = json.loads(world.store.snapshot().meta.extra.get(DRAIN + task.id, "{}"))
    asked = kept.get("attempt") == attempt.id and task.reason.startswith(RESTARTED_BY)
    return float(kept["limit_s"]) if asked else 0.0


def set_draining(host: Host, attempt: Attempt, *, on: bool) -> None:
    """Tells clients on the host whether this server takes requests."""
    url = str((attempt.detail.get("watch") or {}).get("url", ""))
    if url:
        host.set_draining(url.partition("://")[2], on=on)
