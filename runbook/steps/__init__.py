"""The step types: one file each, one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runbook.steps.probe import Probe
from runbook.steps.shell import Shell
from runbook.steps.stop import Stop

if TYPE_CHECKING:
    from runbook.steps.base import Step

STEP_TYPES: dict[str, Step[Any]] = {
    step.name: step
    for step in (
        Probe(),
        Shell(),
        Stop(),
    )
}
