"""Verbs of several people at once over a real sshd, while everything breaks and the file changes.

Engines, decisions and looks, three at a time, some killed; supervisors killed; links cut; a machine
that answers wrongly for a while; a runbook file that is edited, also so that a task moves to
another machine while it runs. RUNBOOK_DECISIONS says for how many seconds (8; `make soak` takes
600), RUNBOOK_SEED which. At the end come decisions until all is done.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.plan import load_runbook
from runbook.service import Service
from state import AttemptState, HostBinding, TaskState
from state.doctor import examine
from state.replay import replay
from state.transitions import TERMINAL
from tests.faults.crowd import ENGINES, Crowd, crowd_on
from tests.support.sshd import Sshd, know, running_sshd

if TYPE_CHECKING:
    import pytest

SEED = int(os.environ.get("RUNBOOK_SEED", "1"))
SECONDS = float(os.environ.get("RUNBOOK_DECISIONS", "8"))
AT_ONCE = 3
EVERY_S = 40.0
"""Between two stops at which everything is looked at."""
ROUNDS = 40
"""Of decisions and `run` at the end, until nothing is left to do."""
TASKS = [*(f"part[{i}]" for i in range(4)), "solo", "ask"]
BY_A_PERSON = ("init", "retry", "verify", "tester")
OVER = (TaskState.DONE, TaskState.SKIPPED)
PROVED = (AttemptState.VERIFIED, AttemptState.CHECK_FAILED)  # the second: judged anew, and held

# Never two of a task at once, by a lock of the kernel's; each attempt at most once, by a line.
PAYLOAD = """\
        cd ${host.work}; exec 9>lock-%(name)s; flock -n 9 || echo %(name)s >> overlap
        echo $RUNBOOK_ATTEMPT >> begins; : %(word)s; sleep %(sleep)s
"""
PARTS = """\
  part:
    for_each: {i: 4}
    title: Part ${each.i}
    phase: one
    step: shell
    with:
      sh: |
%(part)s\
        n=$(cat tries-${each.i} 2>/dev/null || echo 0); echo $((n + 1)) > tries-${each.i}
        test ${each.i} != 1 || test $((n %% 2)) = 1 || exit 75
        echo "{\\"loss\\": 0.$((n %% 3 + 3))}" > m${each.i}.json
    done_when: [{json_metric: {path: "${host.work}/m${each.i}.json", key: loss, max: %(bound)s}}]
    retry: {max: %(retry)d, on: ["exit(75)", lost_supervisor_died, lost_evidence_gone, "signal(9)"]}
"""
SOLO = """\
  solo:
    title: Solo
    phase: one
    host: %(host)s
    step: shell
    with:
      sh: |
%(solo)s\
    retry: {max: %(retry)d, on: [lost_supervisor_died]}
"""
FILE = """\
version: 1
name: decisions
title: Decisions %(title)s
hosts: {box: {title: far}, bay: {title: the same machine by another name}}
phases: {one: One}
defaults: {host: box}
limits: {per_host: {box: 3, bay: 3}}
tasks:
%(tasks)s\
  ask:
    title: Ask
    phase: one
    needs: [%(needs)s]
    gate: {ask: "Good?"}
    step: shell
    with:
      sh: |
%(ask)s\
"""
# What ForceCommand runs: what is in `garble` decides how the machine answers.
WRAPPER = """\
#!/bin/sh
case "$(cat {garble} 2>/dev/null)" in
noise) echo "Welcome to the quota department"; exit 0;;
fail) echo "no more room" >&2; exit 1;;
cut) sh -c "$SSH_ORIGINAL_COMMAND" | head -c 300; exit 0;;
esac
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""


@dataclass(slots=True)
class Edits:
    """The runbook file as it was edited last."""

    path: Path
    bound: str = "0.45"
    sleep: str = "0.6"
    word: str = "a"
    retry: int = 3
    title: str = ""
    host: str = "box"
    without_solo: bool = False

    def change(self, chance: random.Random) -> None:
        name, values = chance.choice(
            [
                ("bound", ("0.35", "0.45", "0.55")),
                ("sleep", ("0.3", "0.6", "1.5")),
                ("word", ("a", "b", "c")),
                ("retry", (1, 3, 9)),
                ("title", ("one", "two")),
                ("host", ("box", "bay")),
                ("without_solo", (True, False)),
            ]
        )
        setattr(self, name, chance.choice(values))
        self.write()

    def write(self) -> None:
        words = {"bound": self.bound, "retry": self.retry, "host": self.host, "title": self.title}
        for name, of_it in (("part", "part-${each.i}"), ("solo", "solo"), ("ask", "ask")):
            words[name] = PAYLOAD % {"name": of_it, "word": self.word, "sleep": self.sleep}
        words["tasks"] = PARTS % words + ("" if self.without_solo else SOLO % words)
        words["needs"] = "part" if self.without_solo else "part, solo"
        aside = self.path.with_suffix(".new")
        aside.write_text(FILE % words, encoding="utf-8")
        aside.replace(self.path)


@dataclass(slots=True)
class Scene:
    """One workspace, its machine, and what is done to both."""

    service: Service
    crowd: Crowd
    sshd: Sshd
    edits: Edits
    far: Path
    garble: Path
    mended_at: float = 0.0
    done: Counter[str] = field(default_factory=Counter)

    @property
    def chance(self) -> random.Random:
        return self.crowd.chance

    def choose(self) -> list[str]:
        task, why = self.chance.choice(TASKS), ["--reason", "by chance"]
        return self.chance.choices(
            [
                ["run"], ["watch", "--until-done"], ["reconcile"], ["reconcile", task],
                ["verify"], ["verify", self.chance.choice([task, "part"])],
                ["verify", "part", "--redo"], ["stop", task], ["retry", task, *why],
                ["retry", task, "--below", *why], ["retry", "--all-failed"],
                ["supersede", task, *why], ["supersede", task, "--dry-run", *why],
                ["gate", "approve", task, *why], ["skip", task, *why], ["status"],
                ["claim", task, "--for", "2s"], ["release", task],
                ["edit"], ["kill a supervisor"], ["cut"], ["garble"],
            ],
            weights=[22, 4, 7, 5, 3, 6, 2, 5, 5, 1, 5, 6, 1, 4, 1, 2, 2, 1, 7, 14, 2, 3],
        )[0]  # fmt: skip

    def do(self, words: list[str]) -> None:
        self.done[words[0]] += 1
        match words[0]:
            case "edit":
                self.edits.change(self.chance)
                self.crowd.start(["init"], None if self.chance.random() < 0.7 else 0.5)
            case "kill a supervisor":
                if found := supervisors(self.far):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.chance.choice(found), signal.SIGKILL)
            case "cut":
                self.sshd.cut()
            case "garble":
                self.garble.write_text(self.chance.choice(["noise", "fail", "cut"]))
                self.mended_at = time.monotonic() + 6 * self.chance.random()
            case verb:
                often = 0.8 if verb in ENGINES else 0.25
                lives = self.chance.choice([0.2, 0.5, 1, 2, 4, 8])
                lives = lives if verb in ENGINES else lives / 10
                killed = verb == "watch" or self.chance.random() < often
                self.crowd.start(words, lives if killed else None)

    def mend(self) -> None:
        self.garble.unlink(missing_ok=True)

    def alone(self, *words: str) -> None:
        """To its end; how it ended, and all that ended meanwhile, is looked at."""
        self.crowd.finish(*words)
        for verb, code in self.crowd.ended:
            said = f"{verb.words[2:]} by {verb.actor}: {code}: {verb.error[-2000:]}"
            assert code in (-signal.SIGKILL, -signal.SIGTERM, *range(11)), said
            assert "bug in runbook" not in verb.error, said
        self.crowd.ended.clear()


def supervisors(far: Path) -> list[int]:
    """Those of jobs that have no outcome yet."""
    found = []
    for folder, _, files in os.walk(far):  # what goes meanwhile is passed over
        if "started" not in files:
            continue
        with contextlib.suppress(OSError, ValueError):
            pid = json.loads(Path(folder, "started").read_text())["supervisor"]["pid"]
            if str(far).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def test_many_decide_at_once_and_nothing_runs_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, far, garble = tmp_path / "ws", tmp_path / "far", tmp_path / "garble"
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(WRAPPER.format(garble=garble))
    wrapper.chmod(0o755)
    for made in (folder, far / "work"):
        made.mkdir(parents=True)
    edits = Edits(path=folder / "runbook.yaml")
    edits.write()
    with (
        running_sshd(tmp_path / "sshd", options=f"ForceCommand {wrapper}") as sshd,
        Service.create(folder, load_runbook(edits.path, {}), actor="tester") as service,
    ):
        know(sshd, tmp_path, monkeypatch)
        for role in ("box", "bay"):
            machine = HostBinding(
                role=role, kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port,
                root=str(far / role), work=str(far / "work"),
            )  # fmt: skip
            service.bind(role, machine, accept_fingerprint="")
        with crowd_on(folder, random.Random(SEED)) as crowd:
            scene = Scene(
                service=service, crowd=crowd, sshd=sshd, edits=edits, far=far, garble=garble
            )
            play(scene)
            settle(scene)
            look(scene)
        attempts = Counter(attempt.state.value for attempt in service.snapshot().attempts)
    print(
        f"{crowd.number} verbs (seed {SEED}, {SECONDS:.0f} s), {crowd.kills.total()} of them "
        f"killed; {dict(scene.done)}; attempts: {dict(attempts)}"
    )


def play(scene: Scene) -> None:
    end, next_look = time.monotonic() + SECONDS, time.monotonic() + EVERY_S
    while (now := time.monotonic()) < end:
        scene.crowd.turn(0.1 + 0.8 * scene.chance.random())
        if now > scene.mended_at:
            scene.mend()
        if now > next_look:
            next_look = now + EVERY_S
            look(scene)
        if len(scene.crowd.living) < AT_ONCE:
            scene.do(scene.choose())


def settle(scene: Scene) -> None:
    """With a file under which all can hold, and a person's yes to everything, it ends."""
    scene.mend()
    scene.crowd.drain()
    scene.edits.bound, scene.edits.sleep, scene.edits.retry = "0.55", "0.1", 9
    scene.edits.without_solo = False
    scene.edits.write()
    scene.alone("init")
    for _ in range(ROUNDS):
        left = [t for t in scene.service.snapshot().tasks if t.state not in OVER]
        if not left:
            return
        for task in left:
            why = ("--reason", "the end")
            match task.state:
                case TaskState.ATTENTION:
                    scene.alone("supersede", task.id, *why)
                case TaskState.FAILED | TaskState.STALE:
                    scene.alone("retry", task.id, *why)
                case TaskState.GATED:
                    scene.alone("gate", "approve", task.id, *why)
                    scene.alone("retry", task.id, *why)  # if a person stopped it
        scene.alone("run")
    tasks = scene.service.snapshot().tasks
    raise AssertionError(f"no end: {[(t.id, t.state.value, t.reason) for t in tasks]}")


def look(scene: Scene) -> None:
    """What must hold whenever nobody is at work, after whatever happened before."""
    scene.mend()
    scene.crowd.drain()
    scene.alone("note", "and now?")
    service, work = scene.service, scene.far / "work"
    assert service.progress_is_current(), "PROGRESS.md is not the rendering of the revision"
    assert examine(service.workspace.database) == []
    snapshot, events = service.snapshot(), service.events(limit=-1)
    assert replay(events) == (snapshot.tasks, snapshot.attempts)
    begins = work / "begins"
    counts = Counter(begins.read_text().split() if begins.exists() else ())
    assert counts.keys() <= {attempt.id for attempt in snapshot.attempts}
    assert max(counts.values(), default=0) <= 1, "an attempt began twice"
    assert not (work / "overlap").exists(), "two attempts of a task ran at once"
    for task in snapshot.tasks:
        attempts = snapshot.attempts_of(task.id)
        assert sum(attempt.state not in TERMINAL for attempt in attempts) <= 1, task.id
        if task.state is TaskState.DONE and not task.removed:
            assert attempts, f"{task.id} is done without an attempt"
            assert attempts[-1].state in PROVED, f"{task.id} is done, {attempts[-1].state}"
    for event in events:
        if event.kind == "task.moved" and event.payload.get("from") == "done":
            by = scene.crowd.verbs.get(event.actor, event.actor)
            assert by in BY_A_PERSON or event.payload["to"] == "stale", (by, event)
