"""What a large task will take on each machine, from a small one that was measured there. Pure.

A task says `estimate: {like: pilot, of: rows, amount: 900000}`: the pilot's results say how many
rows it made, its attempts how long that took, and rentals what that machine costs. Its start and
its end, when it was not in full swing, count once however large the task is.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from runbook.reasons import judgement
from state import AttemptState, UnknownTask
from state.graph import family_of, members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from state import Attempt, Rental, Snapshot, Task

HOUR = 3600.0
OUT = "out"
"""Key of an attempt's evidence: the results of one that went well."""
RAN_S = "ran_s"
"""Key of an attempt's evidence: how long it ran, as its host says."""
STEADY_S = "steady_s"
"""Key of an attempt's evidence: how long its work takes at the rate that it had in full swing."""
LIKE = "estimate_like"
SCALED = ("tokens", "bytes")
"""Results that grow with the work, told beside the hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a task did on one machine; its attempts there together: one that resumes is quick."""

    task: str
    role: str
    machine: str
    usd_per_hour: float | None
    seconds: float
    """In full swing, where that could be seen."""
    aside_s: float
    """Of its start and its end."""
    out: Mapping[str, Any]

    def rate(self, of: str) -> float | None:
        """Of one of its results, by the second; None where it has no such number."""
        done = self.out.get(of)
        if isinstance(done, bool) or not isinstance(done, int | float) or done <= 0:
            return None
        return done / self.seconds if self.seconds > 0 else None

    def takes_s(self, amount: float, of: str) -> float | None:
        """How long so much of it takes there."""
        rate = self.rate(of)
        return None if rate is None else self.aside_s + amount / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A task, or a family of tasks, as if one machine did all that is to come."""

    task: str
    like: str
    role: str
    machine: str
    of: str
    amount: float
    per_hour: float
    hours: float
    usd_per_hour: float | None
    usd: float | None
    tokens: float | None
    bytes: float | None


def measured(snapshot: Snapshot, name: str) -> tuple[Measured, ...]:
    """Every machine on which a task, or a member of a family, went well as it is defined now."""
    try:
        tasks = members(snapshot, name)
    except UnknownTask:
        return ()
    return tuple(found for task in tasks for found in _on_machines(snapshot, task))


def _on_machines(snapshot: Snapshot, task: Task) -> Iterator[Measured]:
    attempts = snapshot.attempts_of(task.id)
    definitions = {task.definition_hash}
    definitions |= {one.definition_hash for one in attempts if went_well(snapshot, task, one)}
    by_machine: defaultdict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.definition_hash in definitions and attempt.ended_at:
            rental = rental_of(snapshot, attempt)
            by_machine[attempt.host, rental.machine if rental else ""].append(attempt)
    for (role, machine), there in by_machine.items():
        well = [one for one in there if went_well(snapshot, task, one)]
        if well:
            rental = rental_of(snapshot, well[-1])
            ran = sum(map(seconds_it_ran, there))
            swing = sum(_swing_s(snapshot, one) for one in there)
            yield Measured(
                task=task.id,
                role=role,
                machine=machine,
                usd_per_hour=rental.usd_per_hour if rental else None,
                seconds=swing,
                aside_s=ran - swing,
                out=_evidence(snapshot, well[-1]).get(OUT) or {},
            )


def went_well(snapshot: Snapshot, task: Task, attempt: Attempt) -> bool:
    """Whether it did by the present definition, at its end or when it was judged again."""
    later = judgement(snapshot, attempt)
    if later:
        return later.get("definition") == task.definition_hash
    same = attempt.definition_hash == task.definition_hash
    return same and attempt.state is AttemptState.VERIFIED


def _evidence(snapshot: Snapshot, attempt: Attempt) -> Mapping[str, Any]:
    return {**attempt.evidence, **judgement(snapshot, attempt).get("evidence", {})}


def rental_of(snapshot: Snapshot, attempt: Attempt) -> Rental | None:
    """The machine that the role had when the attempt began."""
    for rental in reversed(snapshot.rentals):
        if rental.role == attempt.host and rental.since <= attempt.created_at:
            return rental
    return None


def like_of(task: Task) -> Mapping[str, Any] | None:
    """What the file says its estimate is taken from."""
    found: Mapping[str, Any] | None = task.definition.get(LIKE)
    return found


def seconds_of(snapshot: Snapshot, task: Task) -> float | None:
    """Of a task, by the rate of what it is like; its family shares the amount evenly."""
    like = like_of(task)
    if like is None:
        return None
    share = like["amount"] / len(members(snapshot, family_of(task.id)))
    times = [one.takes_s(share, like["of"]) for one in measured(snapshot, like["like"])]
    known = [seconds for seconds in times if seconds]
    return known[-1] if known else None


def forecasts(snapshot: Snapshot) -> tuple[Forecast, ...]:
    """Machines beside each other, for every task whose estimate is taken from another."""
    found: dict[tuple[str, str, str], Forecast] = {}
    for task in snapshot.tasks:
        like = like_of(task)
        if like is None or task.removed:
            continue
        for one in measured(snapshot, family_of(like["like"])):
            rate = one.rate(like["of"])
            if rate is not None:
                key = (family_of(task.id), one.role, one.machine)
                found[key] = _forecast(family_of(task.id), like, one, rate)
    return tuple(found.values())


def _forecast(task: str, like: Mapping[str, Any], on: Measured, rate: float) -> Forecast:
    hours = (on.aside_s + like["amount"] / rate) / HOUR
    price = on.usd_per_hour
    scaled = {
        name: like["amount"] / rate * own if (own := on.rate(name)) else None for name in SCALED
    }
    return Forecast(
        task=task,
        like=on.task,
        role=on.role,
        machine=on.machine,
        of=like["of"],
        amount=like["amount"],
        per_hour=rate * HOUR,
        hours=hours,
        usd_per_hour=price,
        usd=None if price is None else hours * price,
        **scaled,
    )


def _swing_s(snapshot: Snapshot, attempt: Attempt) -> float:
    """Of its time, what its work takes in full swing: all of it where that is not known."""
    ran, said = seconds_it_ran(attempt), _evidence(snapshot, attempt).get(STEADY_S)
    return min(ran, float(said)) if isinstance(said, int | float) else ran


def seconds_it_ran(attempt: Attempt) -> float:
    """By its host; where that did not say, until its end was seen."""
    said = attempt.evidence.get(RAN_S)
    if isinstance(said, int | float):
        return float(said)
    ended = datetime.fromisoformat(attempt.ended_at or attempt.created_at)
    return max(0.0, (ended - datetime.fromisoformat(attempt.created_at)).total_seconds())
