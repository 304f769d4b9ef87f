"""kill -9 of any of twelve processes at any moment: engines, verbs, pushes, all on one workspace.

RUNBOOK_KILLS says how many (100; `make soak` takes 1,000), RUNBOOK_SEED which moments.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from runbook.service import Service
from state.doctor import examine
from state.export import has_event
from state.snapshot_file import unpack
from tests.faults.crowd import ENGINES, Crowd, crowd_on
from tests.support.workspaces import make

if TYPE_CHECKING:
    from pathlib import Path

SEED = int(os.environ.get("RUNBOOK_SEED", "1"))
KILLS = int(os.environ.get("RUNBOOK_KILLS", "100"))
AT_ONCE = 12
TASKS = 12 + KILLS // 5
EVERY = 50
"""Kills between two stops at which everything is looked at."""


def runbook_tasks() -> str:
    """Short jobs; every fifth fails, so that there is something to retry."""
    return "".join(
        f"""\
  t{n}:
    title: Task {n}
    phase: one
    step: shell
    with: {{sh: "echo $RUNBOOK_ATTEMPT >> ${{host.work}}/starts; exit {1 if n % 5 == 4 else 0}"}}
"""
        for n in range(TASKS)
    )


def choose(crowd: Crowd) -> tuple[list[str], float]:
    """A verb, and how long it lives about."""
    task = f"t{crowd.chance.randrange(TASKS)}"
    return crowd.chance.choices(
        [
            (["run", "--json"], 3.0),
            (["watch", "--until-done", "--json"], 3.0),
            (["note", f"said {crowd.number}", "--task", task, "--json"], 0.25),
            (["claim", task, "--for", "1s", "--json"], 0.25),
            (["release", task, "--json"], 0.25),
            (["retry", "--all-failed", "--json"], 0.3),
            (["doc", "add", "runbook.yaml", "--title", f"v{crowd.number}", "--json"], 0.25),
            (["push", str(crowd.folder.parent / "state.runbook"), "--json"], 0.4),
            (["progress"], 0.25),
            (["status", "--json"], 0.15),
            (["verify", task, "--json"], 0.5),
        ],
        weights=[24, 6, 18, 8, 6, 6, 8, 10, 6, 3, 5],
    )[0]


def kill_until(crowd: Crowd, total: int) -> None:
    """Twelve at a time until so many were killed."""
    while crowd.kills.total() < total:
        while len(crowd.living) < AT_ONCE:
            words, about = choose(crowd)
            engine = words[0] in ENGINES
            spared = crowd.chance.random() < 0.25 and not engine
            crowd.start(words, None if spared else about * crowd.chance.uniform(0.02, 1.2))
        crowd.turn(0.01)


def test_killed_by_chance_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    make(folder, runbook_tasks()).close()
    began = time.monotonic()
    with crowd_on(folder, random.Random(SEED)) as crowd:
        crowd.longest_engine_s += KILLS
        for total in [*range(EVERY, KILLS, EVERY), KILLS]:
            kill_until(crowd, total)
            crowd.drain()
            look(crowd)
        wait_for_claims(folder)
        assert crowd.finish("run", "--json")[0] in (0, 3)
        look(crowd)
    with Service.open(folder) as service:
        found = Counter(task.state.value for task in service.snapshot().tasks)
        assert set(found) == {"done", "failed"}, found
        attempts = {attempt.id for attempt in service.snapshot().attempts}
    starts = Counter((folder / "work" / "starts").read_text().split())
    assert starts.keys() <= attempts
    assert max(starts.values()) == 1, "an attempt was started twice"
    print(
        f"{crowd.kills.total()} kills (seed {SEED}) of {crowd.number} processes in "
        f"{time.monotonic() - began:.0f} s: {dict(crowd.kills)}; {len(attempts)} attempts"
    )


def wait_for_claims(folder: Path) -> None:
    """Until those that the dead had made are over: an engine leaves what others claimed."""
    deadline = time.monotonic() + 60
    with Service.open(folder) as service:
        while service.view().claims:
            assert time.monotonic() < deadline, service.view().claims
            time.sleep(0.05)


def look(crowd: Crowd) -> None:
    """What must hold whenever nobody is at work, after whatever happened before."""
    code, said = crowd.finish("note", "and now?", "--json")
    assert code == 0, said
    with Service.open(crowd.folder) as service:
        assert service.progress_is_current(), "PROGRESS.md is not the rendering of the revision"
        database = service.workspace.database
        actors = {event.actor for event in service.events(limit=-1)}
    assert examine(database) == []
    for verb, code in crowd.ended:
        text, error = verb.out.read_text(), verb.error
        assert "bug in runbook" not in error, (verb.words, error)
        if verb.writes and acknowledged(text):
            assert verb.actor in actors, f"{verb.words} was acknowledged and is lost"
        if code == 0 and verb.words[-1] == "--json":
            assert acknowledged(text), (verb.words, text)
    crowd.ended.clear()
    shared = crowd.folder.parent / "state.runbook"
    if shared.exists():
        head, _ = unpack(shared.read_bytes(), "state.runbook")
        assert has_event(database, head.revision, head.event_hash), "what was pushed is not ours"


def acknowledged(text: str) -> bool:
    """Whether a whole answer was given."""
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        return False
    return bool(answer.get("revision"))
