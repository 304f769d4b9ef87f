"""Verbs as processes of their own on one workspace, started, killed and waited for."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.served_verbs import served_verbs

if TYPE_CHECKING:
    import random
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_OTHER_S = 60.0
ENGINES = ("run", "watch")


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
    def name(self) -> str:
        return self.words[2]  # behind -w FOLDER

    @property
    def writes(self) -> bool:
        """Whether its answer, once given, means that something was recorded by its actor."""
        return self.name in ("note", "claim", "doc")

    @property
    def error(self) -> str:
        return self.out.with_name(f"{self.out.name}.err").read_text()


@dataclass(slots=True)
class Crowd:
    """Verbs at work on one workspace, some with a moment at which they are killed."""

    folder: Path
    chance: random.Random
    server: subprocess.Popen[bytes]
    living: dict[int, Verb] = field(default_factory=dict)
    ended: list[tuple[Verb, int]] = field(default_factory=list)
    number: int = 0
    longest_engine_s: float = 600.0
    """The last engine does all that is left."""
    kills: Counter[str] = field(default_factory=Counter)
    verbs: dict[str, str] = field(default_factory=dict)
    """Actor -> verb."""

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
        self.verbs[verb.actor] = verb.name
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
            self.kills[verb.name] += 1

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
            limit = self.longest_engine_s if verb.name in ENGINES else LONGEST_OTHER_S
            assert now - verb.born < limit, f"{verb.words} hangs"
            if verb.dies is not None and now >= verb.dies:
                self.send(pid, signal.SIGKILL)
                verb.dies = None

    def drain(self) -> None:
        """Everybody ends by itself, engines on request."""
        for pid, verb in self.living.items():
            if verb.name in ENGINES:
                self.send(pid, signal.SIGTERM)
        while self.living:
            self.turn(0.05)

    def finish(self, *words: str) -> tuple[int, str]:
        """One verb, alone, to its end."""
        self.start(list(words), None)
        while self.living:
            self.turn(0.05)
        verb, code = self.ended[-1]
        return code, verb.out.read_text() + verb.error


@contextmanager
def crowd_on(folder: Path, chance: random.Random) -> Iterator[Crowd]:
    """Whoever still lives at the end is killed."""
    with served_verbs() as server:
        crowd = Crowd(folder=folder, chance=chance, server=server)
        try:
            yield crowd
        finally:
            for pid in crowd.living:
                crowd.send(pid, signal.SIGKILL)
