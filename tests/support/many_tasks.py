"""A workspace with as many tasks as one likes, made in the store itself: no file is that long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.workspace import Workspace
from state import Need, TaskDef, TaskKind, open_store

if TYPE_CHECKING:
    from pathlib import Path

PHASES = 20
CHAIN = 20
"""Tasks in a row that need each other."""


def many_tasks(folder: Path, count: int) -> Workspace:
    """A workspace of `count` small tasks in twenty phases."""
    workspace = Workspace(folder)
    workspace.private.mkdir(parents=True)
    store = open_store(workspace.database, actor="bench")
    with store.write() as tx:
        tx.load_runbook(
            path="runbook.yaml", text="", digest="many", name="many", title="Many tasks", goal="",
            tasks=[_task(number, count) for number in range(count)],
        )  # fmt: skip
    store.close()
    return workspace


def _task(number: int, count: int) -> TaskDef:
    before = (Need(task=f"t{number - 1}"),) if number % CHAIN else ()
    return TaskDef(
        id=f"t{number}",
        title=f"Task number {number}",
        phase=f"phase-{number * PHASES // count}",
        step="shell",
        kind=TaskKind.ONCE,
        role="box",
        needs=before,
        definition={"with": {"argv": ["true"]}},
        definition_hash=f"d{number}",
        position=number,
    )
