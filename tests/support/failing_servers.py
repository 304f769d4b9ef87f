"""Servers that fail, taken the whole way: step, job, log, diagnosis, and what status says.

A workspace has one `serve` task for each of them. A stand-in prints what SGLang would; the real one
is started through a script of its name, which can make the world bad first (a limit, a full disk).
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runbook.serving.diagnosis import RULES
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from runbook.service import Service
    from state import Attempt

ALIVE = ("starting", "serving", "unhealthy", "draining")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """One server: the arguments of its task, and lines of sh that come before the program."""

    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What became of it."""

    reason: str
    attempt: Attempt
    kind: str
    final: bool
    log: str

    @property
    def cls(self) -> str:
        return str(self.attempt.cls)


def wrap(venv: Path, program: Path, before: str) -> Path:
    """An environment whose `sglang` is a script that ends in the real one."""
    script = venv / "bin" / "sglang"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nset -e\n{before}\nexec "{program}" "$@"\n')
    script.chmod(0o755)
    return venv


def tasks_of(servers: Sequence[Failing], base: Mapping[str, Any]) -> str:
    """One task for each; JSON is YAML."""
    found = {
        server.name: {"title": server.name, "phase": "one", "step": "serve",
                      "with": {**base, **server.given}}
        for server in servers
    }  # fmt: skip
    return "".join(f"  {name}: {json.dumps(task)}\n" for name, task in found.items())


@contextmanager
def workspace(
    folder: Path, servers: Sequence[Failing], base: Mapping[str, Any]
) -> Iterator[Service]:
    """Open, and at its end nothing of it runs."""
    service = make(folder, tasks_of(servers, base))
    try:
        yield service
    finally:
        for name, state in states(service).items():
            if state in ALIVE:
                service.stop(name)
        service.close()


def told(service: Service, name: str) -> Told:
    """What status says of a server that failed, and what it stands on."""
    snapshot = service.snapshot()
    attempt = snapshot.latest_attempt(name)
    assert attempt is not None, snapshot.task(name).reason
    reason = snapshot.task(name).reason
    # One that we stopped, as it would never serve, has it in its reason alone.
    rule = next((rule for rule in RULES if f"{rule.cause}. Next: " in reason), None)
    why = attempt.evidence.get("diagnosis") or (
        {"kind": rule.kind, "final": rule.final} if rule else {}
    )
    log = service.workspace.log(attempt.id, "err")
    return Told(
        reason=reason,
        attempt=attempt,
        kind=why.get("kind", ""),
        final=why.get("final", False),
        log=log.read_text(errors="replace") if log.exists() else "",
    )
