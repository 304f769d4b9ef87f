"""New keys for a job that runs longer than those that it was given.

When they end is known from the host alone, whoever launched the job: so any engine that follows it
hands it new ones in good time, and one that was killed on the way does no harm. A job whose keys
ended while nobody looked keeps what it has, gets new ones as soon as somebody does, or has ended
for want of them (`EXIT_KEYS`) and is run again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dflash.errors import EXIT_KEYS
from remote import RemoteError
from runbook.engine.events import Info
from runbook.engine.handing import hide
from runbook.errors import CannotStart
from runbook.grants import issue
from runbook.secrets import secrets_of

if TYPE_CHECKING:
    from remote import JobStatus
    from runbook.engine.world import World
    from runbook.grants import Issued
    from state import Attempt, Snapshot, Task

RENEW_AT = 2 / 3
"""Of the time that keys hold: a third of it is left for an operator who is away."""
AGAIN_S = 60.0
"""Between two tries for one job: keys that are refused at once are not asked for in a loop."""
MOST_RETRIES = 5
"""In a row: keys that are dead on arrival are a matter of clocks, or of rights."""


def look(world: World, task: Task, attempt: Attempt, status: JobStatus) -> None:
    """Hands new keys to a job whose keys end soon, or that says that they have."""
    key, now = f"keys {attempt.id}", time.monotonic()
    answered = status.progress is not None and status.progress == world.answered.get(attempt.id)
    if not world.may_start or not is_due(status, time.time(), answered=answered):
        return
    if world.background.busy(key) or now < world.next_keys.get(attempt.id, 0.0):
        return
    world.next_keys[attempt.id] = now + AGAIN_S

    def hand(own: World) -> Issued:
        snapshot = own.store.snapshot()
        host = own.host_with(snapshot, attempt)
        taken = own.hosts.secrets.take(snapshot, secrets_of(attempt))
        issued = issue(attempt.detail["job"].get("grants") or (), taken)
        hide(own, issued)
        host.hand_keys(
            attempt.id, issued.values,
            since=issued.since, end=issued.end, generation=attempt.generation,
        )  # fmt: skip
        return issued

    def handed(issued: Issued) -> None:
        if status.progress is not None:
            world.answered[attempt.id] = status.progress
        until = time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(issued.end))
        world.emit(Info(text=f"{task.id}: it has new keys, which hold until {until}"))

    def failed(error: Exception) -> None:
        if not isinstance(error, CannotStart | RemoteError):
            raise error
        text = f"{task.id}: no new keys could be handed to it: {error}"
        world.warn_once(("keys", attempt.id, str(error)), text, error.hint, task.id)

    world.background.begin(
        world, key, attempt.host, hand, done=handed, failed=failed, aside=True, brief=True
    )


def is_due(status: JobStatus, now: float, *, answered: bool = False) -> bool:
    """Whether the keys of a job should be replaced.

    Args:
        answered: what it says last, it said of keys that were replaced since.
    """
    if status.keys is None:
        return False
    since, end = status.keys["since"], status.keys["end"]
    says = (status.progress or {}).get("metrics")
    ended = isinstance(says, dict) and says.get("keys") == "expired" and not answered
    return ended or now >= since + RENEW_AT * (end - since)


def retry_reason(snapshot: Snapshot, attempt: Attempt) -> str | None:
    """Why a task is run again that ended for want of keys: its next launch has new ones."""
    if not attempt.detail.get("job", {}).get("grants") or attempt.exit_code != EXIT_KEYS:
        return None
    count = 0
    for earlier in reversed(snapshot.attempts_of(attempt.task)):
        if earlier.exit_code != EXIT_KEYS:
            break
        count += 1
    if count > MOST_RETRIES:
        return None
    return f"its keys had run out: run again with new ones ({count} of {MOST_RETRIES})"
