"""Whether a claim still holds, by what this machine itself has seen.

Clocks of two machines are never compared. A claim "for 30 min" has run out here when this machine
has known of it for 30 minutes of its own uptime. Where the claim was made that is exact; elsewhere,
and after a reboot, it holds longer than was said, never shorter.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from state import ClaimHeld
from state.claims import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from runbook.workspace import Workspace
    from state import Claim, Snapshot

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
ANYWAY_S = 30 * 60.0
"""How long a claim is for when nobody says."""


def uptime() -> float:
    """Seconds that count on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot() -> str:
    """Which boot this is: uptimes of two boots have nothing in common."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # macOS: a reboot is seen by its smaller uptime
        return "unknown"


@dataclass(frozen=True, slots=True)
class Watched:
    """Since when this machine knows of which claim."""

    path: Path
    now: Callable[[], float] = uptime
    boot: Callable[[], str] = boot

    def left_s(self, claims: Iterable[Claim]) -> dict[str, float]:
        """Subject -> seconds left, negative when it has run out. Writes down what is new."""
        known, boot, now = self._read(), self.boot(), self.now()
        found, left = {}, {}
        for claim in claims:
            here = {"token": claim.token, "boot": boot}
            mark = known.get(claim.subject)
            seen = isinstance(mark, dict) and {**mark, **here} == mark and mark["since"] <= now
            since = float(mark["since"]) if mark and seen else now
            found[claim.subject] = {**here, "since": since}
            left[claim.subject] = claim.for_s - (now - since)
        if found != known:
            from state.mirror import write_file  # the rare case; `status` starts without it

            with suppress(OSError):  # a full disk: the claim then holds longer, and looking works
                write_file(self.path, json.dumps(found).encode())
        return left

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def watched(workspace: Workspace) -> Watched:
    """The memory of this machine for one workspace."""
    return Watched(workspace.private / "claims.json")


def live_claims(workspace: Workspace, snapshot: Snapshot) -> dict[str, float]:
    """Subject -> seconds left, of the claims that hold."""
    if not snapshot.claims:
        return {}
    left = watched(workspace).left_s(snapshot.claims)
    return {subject: seconds for subject, seconds in left.items() if seconds > 0}


def blocking(
    snapshot: Snapshot, live: Collection[str], *, actor: str, tasks: Iterable[str]
) -> Claim | None:
    """The claim of somebody else that keeps `actor` from touching the tasks, or anything."""
    about = {RUN, *tasks}
    for claim in snapshot.claims:
        if claim.subject in about and claim.subject in live and claim.holder != actor:
            return claim
    return None


def require_free(
    workspace: Workspace, snapshot: Snapshot, *, actor: str, tasks: Iterable[str] = ()
) -> None:
    """Raises ClaimHeld when somebody else claimed one of the tasks, or the whole run."""
    if snapshot.claims:
        live = live_claims(workspace, snapshot)
        claim = blocking(snapshot, live, actor=actor, tasks=tasks)
        if claim is not None:
            raise ClaimHeld(claim)
