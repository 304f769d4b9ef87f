"""The places of the interface, in the order of their number keys. Each is loaded when opened."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runbook.tui.screens.place import PlaceScreen


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One screen that a number key opens."""

    id: str
    title: str
    help: str
    cli: str = ""

    def load(self) -> PlaceScreen:
        """The screen; what draws plots is imported here and not at the start."""
        module = import_module(f"runbook.tui.screens.{self.id}")
        screen: PlaceScreen = module.SCREEN()
        return screen


PLACES = (
    Place(id="board", title="Board", help="All tasks, and what to do next",
          cli="runbook status"),
    Place(id="task", title="Task", help="One task: definition, attempts, checks",
          cli="runbook status {task}"),
    Place(id="log", title="Log", help="Its output, a million lines of it",
          cli="runbook logs {task}"),
    Place(id="hosts", title="Hosts", help="The machines: GPUs, memory, mounts",
          cli="runbook host list"),
    Place(id="training", title="Train", help="Loss, accuracy, speed, waits",
          cli="runbook results"),
    Place(id="data", title="Data", help="What the audit found, with samples",
          cli="runbook audit TASK"),
    Place(id="attention", title="Attention",
          help="What waits for you, with the evidence", cli="runbook next"),
    Place(id="timeline", title="Timeline", help="Every event, newest first",
          cli="runbook events"),
    Place(id="handoff", title="Hand-off",
          help="What the next operator reads; notes, decisions", cli="runbook brief"),
)  # fmt: skip

BY_PLACE = {place.id: place for place in PLACES}
