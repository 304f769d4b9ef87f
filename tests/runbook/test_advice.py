"""The next safe action: there is one, and it is a command, whatever states the tasks are in."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest

from runbook.advice import next_action
from runbook.cli.main import COMMANDS
from state import TaskKind, TaskState
from state.transitions import SERVICE_ONLY
from tests.support.workspaces import make

if TYPE_CHECKING:
    from pathlib import Path

    from state import Snapshot

TASKS = """\
  one:
    title: One
    phase: one
    step: shell
    with: {argv: ["true"]}
  two:
    title: Two
    phase: one
    needs: [one]
    step: shell
    with: {argv: ["true"]}
"""


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Two tasks, to be put into any states."""
    folder: Path = tmp_path_factory.mktemp("advice")
    with make(folder, TASKS) as service:
        return service.snapshot()


@pytest.mark.parametrize("engine", [None, "somebody"])
def test_there_is_advice_for_every_pair_of_states(snapshot: Snapshot, engine: str | None) -> None:
    one, two = snapshot.tasks
    for first, second in product(TaskState, TaskState):
        tasks = (
            replace(one, state=first, kind=kind_for(first)),
            replace(two, state=second, kind=kind_for(second)),
        )
        action = next_action(replace(snapshot, tasks=tasks), engine=engine)
        assert action.reason
        if action.command:
            assert action.command.split()[:1] == ["runbook"]
            assert action.command.split()[1] in COMMANDS
        else:
            assert {first, second} <= {TaskState.DONE, TaskState.SKIPPED}


def kind_for(state: TaskState) -> TaskKind:
    """A kind of task that can be in the state."""
    return TaskKind.SERVICE if state in SERVICE_ONLY else TaskKind.ONCE
