"""Bundled runbooks from rent to publish on simulated machines, with what goes wrong on the way."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.simulation import seed
from tests.support.simulation.driver import run_here
from tests.support.simulation.fleet import Fault, Fleet, State, Task

ROOT = Path(__file__).parent.parent.parent
LARGE = "qwen3.6-27b-dflash"
SMALL = "qwen3-8b-dflash"
NEXT = re.compile(r"^\*\*Next safe action:\*\* `([^`]+)`", re.MULTILINE)
MOST_STEPS = 80
KILLS = 10
"""Each within thirty moments of a run: whatever is chosen, the runs are long enough for all."""


@dataclass
class Run:
    """A workspace on a fleet."""

    folder: Path
    fleet: Fleet

    def verb(
        self, *words: str, kill_at: int = 0, kill_after: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """In a process of its own only where it is killed: starting one takes longest."""
        argv = ["-w", str(self.folder), *words]
        if not (kill_at or kill_after):
            code, out, err = run_here(self.fleet, argv)
            return subprocess.CompletedProcess(argv, code, out, err)
        own = {
            "SIM_FLEET": str(self.fleet.path),
            "SIM_KILL_AT": str(kill_at),
            "SIM_KILL_AFTER": kill_after,
        }
        return subprocess.run(
            [sys.executable, "-m", "tests.support.simulation.driver", *argv],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **own},
            cwd=ROOT,
        )

    def states(self) -> dict[str, str]:
        rows = json.loads(self.verb("status", "--json").stdout)["data"]["tasks"]
        return {row["id"]: row["state"] for row in rows}

    def state(self) -> State:
        with self.fleet.open() as state:
            return state

    def ran(self) -> Counter[str]:
        """Attempts that machines saw, by task."""
        return Counter(job.task for job in self.state().jobs.values() if not job.burned)

    def follow(self) -> str:
        """Types the next safe action of the brief; what that was."""
        words = next_words(self)
        assert words, self.verb("brief").stdout
        ended = self.verb(*words[1:])
        assert ended.returncode not in (2, 6, 70), (words, ended.stdout, ended.stderr)
        return shlex.join(words)


def begin(
    folder: Path,
    *,
    name: str = LARGE,
    faults: list[Fault] | None = None,
    tasks: dict[str, Task] | None = None,
    params: tuple[str, ...] = (),
) -> Run:
    """A fresh workspace of a bundled runbook with a machine of its own bound to each role."""
    folder.mkdir(exist_ok=True)
    fleet = Fleet(folder / "fleet.json")
    fleet.create({**seed.TASKS, **(tasks or {})}, faults or [])
    run = Run(folder / "ws", fleet)
    store = f"store=s3://your-bucket/{name}"
    given = [word for param in (store, *params) for word in ("-p", param)]
    made = run.verb("init", name, "--dir", str(run.folder), *given)
    assert made.returncode == 0, made.stderr
    for role in re.findall(r"host bind (\S+) ", made.stdout):
        place = folder / "machines" / role
        where = ("--root", str(place / "root"), "--work", str(place / "work"))
        price = ("--usd-per-hour", "30")
        bound = run.verb("host", "bind", role, f"root@{role}.example", *where, *price)
        assert bound.returncode == 0, bound.stderr
    return run


def next_words(run: Run) -> list[str]:
    """The next safe action, of the brief alone; none at the end."""
    brief = run.verb("brief")
    assert brief.returncode == 0, brief.stderr
    found = NEXT.search(brief.stdout)
    words = shlex.split(found.group(1)) if found else []
    assert words[:1] in ([], ["runbook"]), words
    return words


def follow_the_brief(run: Run, *, kills: list[int] | None = None) -> list[str]:
    """What somebody does who knows nothing: reads the brief and types its next safe action."""
    typed: list[str] = []
    while len(typed) < MOST_STEPS:
        words = next_words(run)
        if not words:
            return typed
        at = kills[0] if kills and "run" in words else 0
        ended = run.verb(*words[1:], kill_at=at)
        if at and ended.returncode == -signal.SIGKILL:
            assert kills
            kills.pop(0)
        assert ended.returncode not in (2, 6, 70), (words, ended.stdout, ended.stderr)
        typed.append(shlex.join(words))
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


def test_from_rent_to_publish_with_a_session_lost_when_generation_ends(tmp_path: Path) -> None:
    run = begin(tmp_path)
    typed = []
    while run.states()["generate@gen"] != "gated":
        typed.append(run.follow())
    typed.append(run.follow())  # a person's yes
    lost = run.verb("run", kill_after="generate")
    assert lost.returncode == -signal.SIGKILL
    assert run.states()["generate@gen"] == "active", "nobody was told that it ended"
    while "give-back" not in next_words(run):
        typed.append(run.follow())
    returned = run.verb("host", "forget", "gen")  # what its question asks for
    assert returned.returncode == 0, returned.stderr
    typed += follow_the_brief(run)
    finished(run)
    asked = [found[1] for line in typed if (found := re.search(r"gate approve (\S+)", line))]
    assert asked == ["rent", "generate@gen", "give-back", "rent-trainer", "publish", "finish"]
    assert set(run.ran().values()) == {1}, "one attempt each: no hour was lost"
    machines = {job.task: job.machine for job in run.state().jobs.values()}
    assert machines["generate.gen"] == "gen.example"
    assert machines["tokenize"] == "cpu.example"
    assert machines["train"] == "trainer.example"
    assert str(seed.COMPLETIONS) in run.verb("results", "--json").stdout


def test_the_pilot_says_what_everything_will_take(tmp_path: Path) -> None:
    run = begin(tmp_path)
    while run.states()["generate@gen"] != "gated":
        run.follow()
    cost = json.loads(run.verb("plan", "--cost", "--json").stdout)["data"]["cost"]
    (row,) = cost["machines"]
    assert row["hours"] == pytest.approx(seed.HOURS * 910_000 / seed.COMPLETIONS)
    assert row["usd"] == pytest.approx(30 * row["hours"])
    assert row["tokens"] == pytest.approx(910_000 * seed.MEAN_TOKENS)
    assert "All of generate, 910,000 rows, if one machine" in run.verb("plan", "--cost").stdout


def test_machines_fail_in_every_way_on_the_way(tmp_path: Path) -> None:
    faults = [
        Fault(task="serve.gen.30003", after_hours=2, kind="kill"),
        Fault(task="generate", after_hours=5, kind="cut"),
        Fault(task="generate", after_hours=9, kind="reboot"),
        Fault(task="train", after_hours=11, kind="kill"),
        Fault(task="train", after_hours=12, kind="reboot"),
    ]
    run = begin(tmp_path, faults=faults)
    follow_the_brief(run)
    finished(run)
    assert all(fault.done for fault in run.state().faults)
    ran = run.ran()
    assert ran["model.gen"] == 2, "shared memory was empty after the boot: it was copied again"
    assert ran["model-train"] == 2
    assert ran["env-gen.gen"] == 1, "the disk was not: its environment was not built again"


def test_empty_data_stops_before_anybody_pays_for_a_day(tmp_path: Path) -> None:
    said = "gate failed: 87 % of the rows have exactly six loss tokens"
    audit = Task(hours=0.1, exits=[4], says=said)
    run = begin(tmp_path, tasks={"audit-pilot": audit})
    while "failed" not in run.states().values():
        run.follow()
    states = run.states()
    assert (states["audit-pilot@gen"], states["generate@gen"]) == ("failed", "blocked")
    assert said in run.verb("brief").stdout


def test_a_set_with_few_loss_tokens_is_not_trained_on(tmp_path: Path) -> None:
    # Its report says that it passed; the runbook's own limit is held against its numbers.
    poor = json.dumps({**json.loads(seed.audit(loss_share=0.1)), "passed": False})
    audit = Task(hours=0.1, files={"audit-tokens/report.json": poor})
    run = begin(tmp_path, tasks={"audit-tokens": audit})
    while "failed" not in run.states().values():
        run.follow()
    states = run.states()
    assert (states["audit-tokens"], states["train"]) == ("failed", "blocked")


def test_ninety_terabytes_of_states_are_refused_by_the_budget(tmp_path: Path) -> None:
    run = begin(tmp_path, params=("states=whole",))
    while "failed" not in run.states().values():
        run.follow()
    states = run.states()
    assert (states["storage"], states["rent-trainer"]) == ("failed", "blocked")
    brief = run.verb("brief").stdout
    terabytes = seed.storage_plan()["numbers"]["bytes"]["whole"]["bfloat16"]
    assert 90e12 < terabytes < 100e12
    said = f"numbers.bytes.whole.bfloat16 is {terabytes:,.0f}, wanted at most 20,000,000,000,000"
    assert said in brief, brief
    # The decision is written down, the parameter changed, and what is done stays done.
    decided = "states are not kept: online training"
    run.verb("note", "--decision", "--task", "storage", decided)
    taken = run.verb("init", "-p", "states=online")
    assert taken.returncode == 0, taken.stderr
    assert run.verb("retry", "storage").returncode == 0
    follow_the_brief(run)
    finished(run)
    assert set(run.ran().values()) == {1, 2}
    assert run.ran()["storage"] == 2
    assert decided in run.verb("brief").stdout


@pytest.mark.parametrize("name", [LARGE, SMALL])
def test_killed_at_random_places_and_taken_over_each_time(tmp_path: Path, name: str) -> None:
    chosen = random.Random(int(os.environ.get("RUNBOOK_SEED", "1")))
    run = begin(tmp_path, name=name)
    kills = [chosen.randrange(1, 30) for _ in range(KILLS if name == LARGE else 3)]
    follow_the_brief(run, kills=kills)
    finished(run)
    assert kills == [], "each of them happened"
    assert set(run.ran().values()) == {1}, "and cost no second attempt"
