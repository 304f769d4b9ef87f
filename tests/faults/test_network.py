"""A rotating selection of the network's faults; all of them, and more often, with RUNBOOK_FAULTS.

RUNBOOK_SEED chooses which and where; CI rotates it, and a failure can be repeated by it. The whole
campaign, with its table: `python tests/faults/campaign.py`.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.faults.field import prepared
from tests.faults.network import FAULTS, Fault
from tests.support import namespaces

if TYPE_CHECKING:
    from pathlib import Path

SEED = int(os.environ.get("RUNBOOK_SEED", "1"))
SCALE = int(os.environ.get("RUNBOOK_FAULTS", "1"))
BUDGET_S = 30


def chosen() -> list[Fault]:
    """All, or what the seed draws within the budget."""
    if SCALE > 1:
        return FAULTS
    drawn: list[Fault] = []
    for fault in random.Random(SEED).sample(FAULTS, len(FAULTS)):
        if sum(one.seconds for one in drawn) + fault.seconds <= BUDGET_S:
            drawn.append(fault)
    return drawn


@pytest.mark.parametrize("fault", chosen(), ids=lambda fault: fault.run.__name__)
def test_one_start_and_a_known_outcome(tmp_path: Path, fault: Fault) -> None:
    if fault.far:
        namespaces.require()
    chance = random.Random(f"{SEED} {fault.name}")
    with prepared(tmp_path, chance, scale=SCALE, far=fault.far) as field:
        fault.run(field)
    assert field.tally.attempts > 0
    assert (field.tally.double, field.tally.missing) == (0, 0), field.tally
