"""kill -9 of any of twelve processes at any moment: engines, verbs, pushes, all on one workspace.

RUNBOOK_KILLS says how many (100; `make soak` takes 1,000), RUNBOOK_SEED which moments.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.service import Service
from state.doctor import examine
from state.export import has_event
from state.snapshot_file import unpack
from tests.support.workspaces import make

SEED = int(os.environ.get("RUNBOOK_SEED", "1"))
KILLS = int(os.environ.get("RUNBOOK_KILLS", "100"))
AT_ONCE = 12
TASKS = 12 + KILLS // 5
EVERY = 50
"""Kills between two stops at which everything is looked at."""
LONGEST_S = dict.fromkeys(("run", "watch"), 600.0 + KILLS)
"""The last engine does all that is left."""
LONGEST_OTHER_S = 60.0


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


@dataclass(slots=True)
class Verb:
    """One process."""

    words: list[str]
    actor: str
    out: Path
    born: float
    dies: float | None
    """When it is killed, unless it has ended by then."""

    @property
    def writes(self) -> bool:
        """Whether its answer, once given, means that something was recorded by its actor."""
        return self.words[2] in ("note", "claim", "doc")


@dataclass(slots=True)
class Crowd:
    """Twelve verbs at a time, chosen and killed by chance."""

    folder: Path
    chance: random.Random
    server: subprocess.Popen[bytes]
    living: dict[int, Verb] = field(default_factory=dict)
    ended: list[tuple[Verb, int]] = field(default_factory=list)
    number: int = 0
    kills: Counter[str] = field(default_factory=Counter)

    def choose(self) -> tuple[list[str], float]:
        """A verb, and how long it lives about."""
        task = f"t{self.chance.randrange(TASKS)}"
        return self.chance.choices(
            [
                (["run", "--json"], 3.0),
                (["watch", "--until-done", "--json"], 3.0),
                (["note", f"said {self.number}", "--task", task, "--json"], 0.25),
                (["claim", task, "--for", "1s", "--json"], 0.25),
                (["release", task, "--json"], 0.25),
                (["retry", "--all-failed", "--json"], 0.3),
                (["doc", "add", "runbook.yaml", "--title", f"v{self.number}", "--json"], 0.25),
                (["push", str(self.folder.parent / "state.runbook"), "--json"], 0.4),
                (["progress"], 0.25),
                (["status", "--json"], 0.15),
                (["verify", task, "--json"], 0.5),
            ],
            weights=[24, 6, 18, 8, 6, 6, 8, 10, 6, 3, 5],
        )[0]

    def start(self, words: list[str], lives: float | None) -> None:
        self.number += 1
        out = self.folder.parent / "said" / f"{self.number}"
        out.parent.mkdir(exist_ok=True)
        for path in (out, out.with_name(f"{out.name}.err")):
            path.touch()
        now = time.monotonic()
        verb = Verb(
            words=["-w", str(self.folder), *words],
            actor=f"w{self.number}",
            out=out,
            born=now,
            dies=None if lives is None else now + lives,
        )
        order = {"verb": verb.words, "actor": verb.actor, "out": str(out)}
        self.tell(order)
        self.living[int(self.line())] = verb

    def tell(self, order: dict[str, Any]) -> None:
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(order).encode() + b"\n")

    def send(self, pid: int, number: int) -> None:
        """By the server, which knows whether the process is still its child."""
        self.tell({"pid": pid, "signal": number})

    def line(self) -> str:
        """The next answer that is no death; deaths on the way are noted."""
        assert self.server.stdout is not None
        while True:
            text = self.server.stdout.readline().decode()
            assert text, "the server ended"
            if not text.startswith("gone"):
                return text
            self.gone(text)

    def gone(self, text: str) -> None:
        _, pid, status = text.split()
        verb = self.living.pop(int(pid))
        code = os.waitstatus_to_exitcode(int(status))
        self.ended.append((verb, code))
        if code == -signal.SIGKILL:
            self.kills[verb.words[2]] += 1

    def turn(self, seconds: float) -> None:
        """Notes who is gone and kills whose time has come."""
        assert self.server.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.server.stdout, selectors.EVENT_READ)
            while selector.select(timeout=seconds):
                self.gone(self.server.stdout.readline().decode())
                seconds = 0
        now = time.monotonic()
        for pid, verb in self.living.items():
            limit = LONGEST_S.get(verb.words[2], LONGEST_OTHER_S)
            assert now - verb.born < limit, f"{verb.words} hangs"
            if verb.dies is not None and now >= verb.dies:
                self.send(pid, signal.SIGKILL)
                verb.dies = None

    def kill_until(self, total: int) -> None:
        """Twelve at a time until so many were killed."""
        while self.kills.total() < total:
            while len(self.living) < AT_ONCE:
                words, about = self.choose()
                engine = words[0] in ("run", "watch")
                spared = self.chance.random() < 0.25 and not engine
                self.start(words, None if spared else about * self.chance.uniform(0.02, 1.2))
            self.turn(0.01)

    def drain(self) -> None:
        """Everybody ends by itself, engines on request."""
        for pid, verb in self.living.items():
            if verb.words[2] in ("run", "watch"):
                self.send(pid, signal.SIGTERM)
        while self.living:
            self.turn(0.05)

    def finish(self, *words: str) -> tuple[int, str]:
        """One verb, alone, to its end."""
        self.start(list(words), None)
        while self.living:
            self.turn(0.05)
        verb, code = self.ended[-1]
        return code, verb.out.read_text() + verb.out.with_name(verb.out.name + ".err").read_text()


def test_killed_by_chance_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    make(folder, runbook_tasks()).close()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.verb_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        cwd=Path(__file__).parents[2],
    )
    crowd = Crowd(folder=folder, chance=random.Random(SEED), server=server)
    began = time.monotonic()
    try:
        assert crowd.line() == "ready\n"
        for total in [*range(EVERY, KILLS, EVERY), KILLS]:
            crowd.kill_until(total)
            crowd.drain()
            look(crowd)
        wait_for_claims(folder)
        assert crowd.finish("run", "--json")[0] in (0, 3)
        look(crowd)
    finally:
        for pid in crowd.living:
            crowd.send(pid, signal.SIGKILL)
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()
        server.wait(timeout=60)
        server.stdout.close()
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
        text = verb.out.read_text()
        error = verb.out.with_name(verb.out.name + ".err").read_text()
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
