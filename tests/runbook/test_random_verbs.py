"""Any verb after any other, on machines that fail: no bug, no second start, and the story is whole.

Seeded: RUNBOOK_SEED=N repeats one story.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from runbook.errors import Exit
from state import open_store
from state.doctor import examine
from state.replay import replay
from state.transitions import TERMINAL
from tests.support.simulation.driver import run_here
from tests.support.simulation.fleet import Fault, Fleet, Task

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
version: 1
name: random
title: A little of everything
hosts: {box: {}}
phases: {one: One}
defaults: {host: box}
limits: {global: 2}
budget: {hours: 30}
tasks:
  make:
    for_each: {i: 3}
    title: Make ${each.i}
    phase: one
    step: shell
    with: {argv: [make, "${each.i}"]}
    resources: {gpus: [0]}
    retry: {max: 1, on: ["exit(75)", lost_reboot]}
  other:
    title: Other
    phase: one
    step: shell
    with: {argv: [other]}
    estimate: 2h
  ask:
    title: Ask
    phase: one
    needs: [make, other]
    step: manual
    with: {ask: "Is it good?"}
  last:
    title: Last
    phase: one
    needs: [ask]
    step: shell
    with: {argv: [last]}
    gate: {ask: "Really?"}
"""
TASKS = ["make[0]", "make[1]", "make[2]", "other", "ask", "last"]
SEEDS = [int(os.environ["RUNBOOK_SEED"])] if "RUNBOOK_SEED" in os.environ else [1, 2, 3]
VERBS = 14


def verb(chance: random.Random) -> list[str]:
    task = chance.choice(TASKS)
    return chance.choice(
        [
            ["run"],
            ["run"],
            ["run", task],
            ["run", "--until", task],
            ["stop", task],
            ["retry", task],
            ["retry", "--all-failed"],
            ["skip", task, "--reason", "why not"],
            ["supersede", task, "--reason", "gone"],
            ["verify"],
            ["verify", "--redo"],
            ["reconcile", chance.choice(["", task, "box"])],
            ["gate", "approve", task, "--reason", "good"],
            ["gate", "approve", task],
            ["note", "words", "--task", task],
            ["host", "rent", "box", "--usd-per-hour", str(chance.randint(0, 9))],
            ["host", "probe", "box"],
            ["host", "bind", "box", "local"],
            ["init"],
            ["status"],
            ["plan", "--cost"],
            ["brief"],
        ]
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_any_verb_after_any_other(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kinds = ["reboot", "rebuilt", "cut", "kill"]
    faults = [
        Fault(task=chance.choice(TASKS[:4]), after_hours=0.05, kind=chance.choice(kinds))
        for _ in range(3)
    ]
    fleet = Fleet(tmp_path / "fleet.json")
    fleet.create({"make": Task(exits=[75]), "other": Task(hours=1, exits=[3])}, faults)
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "runbook.yaml").write_text(FILE, encoding="utf-8")
    typed = [["init"], ["host", "bind", "box", "local"], *(verb(chance) for _ in range(VERBS))]
    for words in typed:
        code, out, err = run_here(fleet, ["-w", str(folder), *words])
        assert code in set(Exit) and code != 70, (seed, words, code, out, err)  # noqa: PT018
        assert "Traceback" not in err, (seed, words, err)
    with fleet.open() as state:
        assert state.wrong == [], (seed, state.wrong)
    database = folder / ".runbook" / "state.db"
    assert examine(database) == []
    with open_store(database, actor="reader") as store:
        snapshot = store.snapshot()
        assert replay(store.events(limit=-1)) == (snapshot.tasks, snapshot.attempts)
        for task in snapshot.tasks:
            live = [a for a in snapshot.attempts_of(task.id) if a.state not in TERMINAL]
            assert len(live) <= 1
