"""What the fronts read: frozen records made by the service from one snapshot. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 (schemas are made from these annotations)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runbook.reasons import made_of_earlier, stop_pending
from state import Claim
from state.transitions import RUNNING

if TYPE_CHECKING:
    from state import Snapshot, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The last observation of a running attempt. Not durable: it ages and may be gone."""

    attempt: str
    progress: Mapping[str, Any] | None
    out_size: int
    err_size: int
    beat: int
    seen_at: str
    """UTC ISO time of the poll that saw it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextAction:
    """The next safe thing to do, as a command anyone can type, and why."""

    verb: str
    """run, wait, retry, approve, bind, supersede, or nothing."""
    task: str | None
    command: str
    reason: str
    """In words of ours."""
    said: str = ""
    """What was recorded with it; text of a stranger where it quotes a host."""
    person: bool = False
    """A person's to decide: an agent asks for it and goes no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything a front shows, made from one revision."""

    snapshot: Snapshot
    next: NextAction
    live: Mapping[str, Live] = field(default_factory=dict)
    """By task id, for attempts that run."""
    edited: bool = False
    """runbook.yaml is not what the graph was made from: `runbook init` takes it over."""
    engine: str | None = None
    """Who advances the graph right now; None when nobody does."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Ready tasks that a resource or a limit holds back, and why."""
    claims: Mapping[str, float] = field(default_factory=dict)
    """Task, or `run` -> seconds for which its claim still holds, as this machine judges it."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """Listed document -> `same`, `changed` or `gone`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint of a training run, as it lies on its host."""

    path: str
    step: int
    size: int
    """Bytes on its disk."""
    latest: bool
    """The one that a resume begins with."""
    best: bool
    """The one with the highest acceptance on held-out documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task in a line, as JSON answers and tools tell it."""

    id: str
    title: str
    phase: str
    step: str
    state: str
    reason: str
    """Text of a stranger where it quotes a host."""
    family: str | None
    waits: str | None
    """What holds a ready task back."""
    since: str
    attempts: int
    progress: Live | None
    """The last observation, while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim(Claim):
    """A claim that holds."""

    left_s: float
    """Seconds left, as this machine judges it."""


def reason_beside(snapshot: Snapshot, task: Task) -> str:
    """Why it is as it is, and what its state does not show."""
    earlier = made_of_earlier(snapshot, task)
    told = task.reason or stop_pending(snapshot, task)
    return f"{told}; {earlier}" if told and earlier else told or earlier


def task_row(view: View, task: Task) -> TaskRow:
    """A task in a line."""
    family = task.definition.get("family")
    return TaskRow(
        id=task.id,
        title=task.title,
        phase=task.phase,
        step=task.step,
        state=task.state.value,
        reason=reason_beside(view.snapshot, task),
        family=None if family is None else str(family),
        waits=view.waiting.get(task.id),
        since=task.since,
        attempts=len(view.snapshot.attempts_of(task.id)),
        progress=view.live.get(task.id) if task.state in RUNNING else None,
    )


def json_object(text: str) -> Mapping[str, Any]:
    """A JSON object that somebody stored; empty for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def phase_title(snapshot: Snapshot, phase: str) -> str:
    """What the runbook file calls a phase; else `target_server` as `Target server`."""
    title = json_object(snapshot.meta.extra.get("phases", "{}")).get(phase)
    if title:
        return str(title)
    words = phase.replace("_", " ").replace("-", " ").strip()
    return words[:1].upper() + words[1:]


def held_claims(view: View) -> list[HeldClaim]:
    """Those that hold."""
    return [
        HeldClaim(
            **{name: getattr(claim, name) for name in Claim.__dataclass_fields__},
            left_s=view.claims[claim.subject],
        )
        for claim in view.snapshot.claims
        if claim.subject in view.claims
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended."""

    outcome: str
    """done, blocked, failed, attention, gate, budget, until, interrupted, or held."""
    reason: str
    started: tuple[str, ...] = ()
    """Tasks started in this run, in order."""
