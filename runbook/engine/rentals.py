"""The end of a rental, told in time to save what is only on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.costs import HOUR, parse, spell
from runbook.engine.events import RentalEnding
from state.transitions import RUNNING

if TYPE_CHECKING:
    from runbook.engine.world import World
    from state import Snapshot

WARN_HOURS = (0.25, 1.0, 4.0)
"""Each is told once, the shortest that applies."""


def warn_of_rentals(world: World, snapshot: Snapshot) -> None:
    """Warns while something runs on a machine that will be taken away soon."""
    for host in snapshot.hosts:
        if host.ends_at is None:
            continue
        left = (parse(host.ends_at) - world.now()).total_seconds() / HOUR
        step = next((hours for hours in WARN_HOURS if left <= hours), None)
        if step is None:
            continue
        running = [t.id for t in snapshot.tasks if t.role == host.role and t.state in RUNNING]
        if running:
            when = f"ends in {spell(left)}" if left > 0 else f"ended at {host.ends_at}"
            text = f"The rental of {host.role} {when}, and {', '.join(running[:4])} runs there."
            hint = (
                "Save what is only on that machine; after renting it for longer: "
                f"`runbook host rent {host.role} --ends-at TIME`."
            )
            key = ("rental", host.role, host.ends_at, str(step))
            world.tell_once(key, RentalEnding(text=text, hint=hint, role=host.role))
