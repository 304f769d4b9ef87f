"""Writers killed without warning: nothing that was acknowledged is lost, nothing happens twice."""

from __future__ import annotations

import random
import selectors
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from state import TaskState, open_store
from state.doctor import examine
from tests.state import processes
from tests.state.builders import load, task_def

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

KILLS = 30
WRITERS = 4
UNITS = 300


@pytest.mark.parametrize("seed", [1])
def test_writers_under_kill_9(db: Path, seed: int) -> None:
    chance = random.Random(seed)
    with open_store(db, actor="tester") as store:
        load(store, [task_def(f"u{n}", position=n) for n in range(UNITS)])

    crew = Crew(db, seed)
    try:
        for _ in range(KILLS):
            crew.read_lines(chance.randint(1, 8))
            crew.kill(chance.randrange(WRITERS))
    finally:
        crew.end()

    assert examine(db) == []
    with open_store(db, actor="tester") as store:
        snapshot = store.snapshot()
        claims = Counter(attempt.task for attempt in snapshot.attempts)
        assert max(claims.values()) == 1
        stored = {attempt.id for attempt in snapshot.attempts}
        assert len(crew.claimed) == len(set(crew.claimed))
        assert set(crew.claimed) <= stored
        assert all(snapshot.task(unit).state is TaskState.DONE for unit in crew.done)
        # Whoever was killed between two commits left its unit at one of the steps between.
        between = {TaskState.ACTIVE, TaskState.VERIFYING}
        left = [task for task in snapshot.tasks if task.state in between]
        assert len(left) <= KILLS + WRITERS
        assert len(crew.done) > KILLS


class Crew:
    """Some writers at work on one database, and what they acknowledged."""

    def __init__(self, db: Path, seed: int) -> None:
        self.db = db
        self.seed = seed
        self.started = 0
        self.claimed: list[str] = []
        self.done: list[str] = []
        self.selector = selectors.DefaultSelector()
        self.writers = [self._start() for _ in range(WRITERS)]

    def _start(self) -> subprocess.Popen[str]:
        self.started += 1
        writer = processes.start("claim_units", self.db, f"{self.seed}-{self.started}")
        assert writer.stdout is not None
        self.selector.register(writer.stdout, selectors.EVENT_READ)
        return writer

    def read_lines(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while count > 0:
            assert time.monotonic() < deadline, "the writers stopped writing"
            for key, _ in self.selector.select(timeout=5):
                line = key.fileobj.readline()
                assert line, "a writer ended by itself: give it more units"
                self._note(line)
                count -= 1

    def _note(self, line: str) -> None:
        words = line.split()
        if words[0] == "claimed":
            self.claimed.append(words[2])
        else:
            self.done.append(words[1])

    def kill(self, index: int) -> None:
        self._finish(self.writers[index])
        self.writers[index] = self._start()

    def _finish(self, writer: subprocess.Popen[str]) -> None:
        assert writer.stdout is not None
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        self.selector.unregister(writer.stdout)
        for line in writer.stdout:  # said before it died, so it must be true
            self._note(line)
        processes.end(writer)

    def end(self) -> None:
        for writer in self.writers:
            self._finish(writer)
        self.selector.close()


def test_first_starts_race_to_one_workspace(db: Path) -> None:
    starters = [processes.start("first_start", db) for _ in range(4)]
    try:
        for starter in starters:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "waiting\n"
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write("go\n")
            starter.stdin.flush()
        answers = {starter.stdout.readline() for starter in starters if starter.stdout}
    finally:
        for starter in starters:
            processes.end(starter)
    assert len(answers) == 1
    assert answers.pop().split()[1] == "1"
    assert examine(db) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_first_start_that_is_killed_leaves_a_startable_workspace(db: Path, seed: int) -> None:
    starter = processes.start("first_start", db)
    try:
        assert starter.stdout is not None
        assert starter.stdin is not None
        assert starter.stdout.readline() == "waiting\n"
        starter.stdin.write("go\n")
        starter.stdin.flush()
        # The moment is swept over the whole opening by waiting on its traces, not on the clock.
        trace = [db.parent, db, db.parent / "locks", db.with_name("state.db-wal")][seed % 4]
        deadline = time.monotonic() + 30
        while not trace.exists() and time.monotonic() < deadline:
            pass
    finally:
        processes.end(starter)
    with open_store(db, actor="second") as store:
        assert store.revision() == 1
    assert examine(db) == []
