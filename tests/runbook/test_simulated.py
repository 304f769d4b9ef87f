"""Bundled runbooks from rent to publish on simulated machines, with what goes wrong on the way."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.simulation.driver import run_here
from tests.support.simulation.fleet import Fault, Fleet, State, Task

ROOT = Path(__file__).parent.parent.parent
NAME = "qwen3.6-27b-dflash"
NEXT = re.compile(r"^\*\*Next safe action:\*\* `([^`]+)`", re.MULTILINE)
MOST_STEPS = 60
FILES = {
    "export": {"drafter/model.safetensors": "weights"},
    "eval": {"eval.json": "{}"},
    "check": {"check.json": "{}"},
    "audit": {"audit/report.json": "{}"},
}
SCRIPT = {
    "serve": Task(service=True),
    "generate": Task(hours=17, out={"rows": 902_087}),
    "train": Task(hours=40, out={"checkpoint": "/work/train/step-200000"}),
    "model": Task(
        hours=0.2, out={"path": "/dev/shm/runbook/Qwen3.6-27B"}, in_memory="Qwen3.6-27B.place"
    ),
    **{name: Task(hours=0.5, files=files) for name, files in FILES.items()},
}


@dataclass
class Run:
    """A workspace on a fleet."""

    folder: Path
    fleet: Fleet

    def verb(self, *words: str, kill_at: int = 0) -> subprocess.CompletedProcess[str]:
        """In a process of its own only where it is killed: starting one takes longest."""
        argv = ["-w", str(self.folder), *words]
        if not kill_at:
            code, out, err = run_here(self.fleet, argv)
            return subprocess.CompletedProcess(argv, code, out, err)
        env = {**os.environ, "SIM_FLEET": str(self.fleet.path), "SIM_KILL_AT": str(kill_at)}
        return subprocess.run(
            [sys.executable, "-m", "tests.support.simulation.driver", *argv],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=env,
            cwd=ROOT,
        )

    def states(self) -> dict[str, str]:
        rows = json.loads(self.verb("status", "--json").stdout)["data"]["tasks"]
        return {row["id"]: row["state"] for row in rows}

    def state(self) -> State:
        with self.fleet.open() as state:
            return state


def begin(folder: Path, *, faults: list[Fault], tasks: dict[str, Task] | None = None) -> Run:
    """A fresh workspace of the bundled runbook with its machine bound."""
    folder.mkdir(exist_ok=True)
    fleet = Fleet(folder / "fleet.json")
    fleet.create({**SCRIPT, **(tasks or {})}, faults)
    run = Run(folder / "ws", fleet)
    store = f"store=file://{folder}/store"
    made = run.verb("init", NAME, "--dir", str(run.folder), "-p", store)
    assert made.returncode == 0, made.stderr
    for role in re.findall(r"host bind (\S+) local", made.stdout):
        bound = run.verb("host", "bind", role, "local", "--work", str(folder / "work"))
        assert bound.returncode == 0, bound.stderr
    return run


def follow_the_brief(run: Run, *, kills: list[int]) -> list[str]:
    """What somebody does who knows nothing: reads the brief and types its next safe action."""
    typed = []
    while len(typed) < MOST_STEPS:
        brief = run.verb("brief")
        assert brief.returncode == 0, brief.stderr
        found = NEXT.search(brief.stdout)
        if found is None:
            return typed
        words = shlex.split(found.group(1))
        assert words[0] == "runbook", found.group(1)
        at = kills.pop(0) if kills and "run" in words else 0
        ended = run.verb(*words[1:], kill_at=at)
        assert ended.returncode not in (2, 6, 70), (words, ended.stdout, ended.stderr)
        typed.append(found.group(1))
    raise AssertionError(f"no end: {typed[-8:]}")


def finished(run: Run) -> None:
    """All is done, and nothing was ever started twice."""
    states = run.states()
    assert set(states.values()) <= {"done", "skipped"}, states
    assert run.state().wrong == []
    check = run.verb("progress", "--check")
    assert check.returncode == 0, check.stdout
    doctor = run.verb("doctor")
    assert doctor.returncode == 0, doctor.stdout


def test_from_rent_to_publish(tmp_path: Path) -> None:
    run = begin(tmp_path, faults=[])
    typed = follow_the_brief(run, kills=[])
    finished(run)
    assert any("gate approve publish" in line for line in typed)
    attempts = [job.task for job in run.state().jobs.values()]
    assert len(attempts) == len(set(attempts)), "one attempt each"


def test_machines_fail_in_every_way_on_the_way(tmp_path: Path) -> None:
    faults = [
        Fault(task="serve.30003", after_hours=2, kind="kill"),
        Fault(task="generate", after_hours=5, kind="cut"),
        Fault(task="generate", after_hours=9, kind="reboot"),
        Fault(task="train", after_hours=11, kind="kill"),
    ]
    run = begin(tmp_path, faults=faults)
    follow_the_brief(run, kills=[])
    finished(run)
    state = run.state()
    assert all(fault.done for fault in state.faults)
    ran = Counter(job.task for job in state.jobs.values())
    assert ran["model"] == 2, "shared memory was empty after the boot: it was copied again"
    assert ran["env-train"] == 1, "the disk was not: its environment was not built again"


def test_empty_data_stops_before_anybody_trains_on_it(tmp_path: Path) -> None:
    said = "gate failed: 87 % of the rows have exactly six loss tokens"
    audit = Task(hours=0.1, exits=[4], says=said, files=FILES["audit"])
    run = begin(tmp_path, faults=[], tasks={"audit": audit})
    while "failed" not in (states := run.states()).values():
        words = NEXT.search(run.verb("brief").stdout)
        assert words is not None
        run.verb(*shlex.split(words.group(1))[1:])
    assert (states["audit"], states["train"]) == ("failed", "blocked")
    assert said in run.verb("brief").stdout


def test_killed_at_random_places_and_taken_over_each_time(tmp_path: Path) -> None:
    seed = int(os.environ.get("RUNBOOK_SEED", "1"))
    chosen = random.Random(seed)
    run = begin(tmp_path, faults=[])
    kills = [chosen.randrange(1, 60) for _ in range(10)]
    follow_the_brief(run, kills=list(kills))
    finished(run)
