"""The loop: observe, start what is ready, wait a little; until there is nothing left to do."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runbook.claims import blocking, live_claims
from runbook.engine.events import Info
from runbook.engine.garbage import shrink_old_jobs
from runbook.engine.losses import sweep_lost
from runbook.engine.observe import live_attempts, observe
from runbook.engine.rentals import warn_of_rentals
from runbook.engine.start import start, start_key
from runbook.engine.stopping import stop_beside
from runbook.live import write_live
from runbook.placement import Placement, place
from runbook.reasons import (
    CLASS_OF_STOP,
    PENDING_STOP,
    RESTARTED_BY,
    WHY_STOPPED,
    all_done,
    is_over,
)
from runbook.views import RunResult
from state import (
    AttemptState,
    FailureClass,
    NotRunnable,
    PreviousAttemptLive,
    Snapshot,
    StateMoved,
    Task,
    TaskState,
)
from state.telling import STOPPED_BY
from state.transitions import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from threading import Event as StopEvent

    from runbook.engine.world import World

POLL_S = (0.3, 2.0)
"""Shortest and longest pause between two looks; it grows while nothing happens."""
WAITS_TOLD = 20
START_S = 0.5
"""How long one look waits for starts; what takes longer is taken over by a later one."""
STOP_TAKEN_OVER_S = 60.0
"""A stop that another client began is finished by us when it has not moved for so long."""

RACES = (StateMoved, NotRunnable, PreviousAttemptLive)
"""Somebody's verb moved a task between our look and our write. The next look sees it moved."""
RACES_IN_A_ROW = 5

# A server that is unhealthy waits for a person, or for itself: neither keeps a run going.
MOVING = RUNNING - {TaskState.SERVING, TaskState.UNHEALTHY}
SATISFIED = frozenset({TaskState.DONE, TaskState.SKIPPED})


@dataclass(slots=True)
class Engine:
    """Advances the graph within `scope` (all tasks when empty) until nothing can move."""

    world: World
    scope: frozenset[str] = frozenset()
    started: list[str] = field(default_factory=list)
    _stops: dict[str, float] = field(default_factory=dict)
    _races: int = 0
    _looked: bool = False

    def run(self, stop_event: StopEvent, *, moved: Callable[[], None]) -> RunResult:
        """Blocks until there is nothing left to do, or until `stop_event` is set.

        Args:
            moved: called after every round that changed the graph.
        """
        pause, seen = POLL_S[0], -1
        while not stop_event.is_set():
            idle = self.round()
            revision = self.world.store.revision()
            if revision != seen:
                moved()
            if idle:
                return self.result()
            pause = POLL_S[0] if revision != seen else min(pause * 1.5, POLL_S[1])
            seen = revision
            self.world.background.pause(stop_event, pause)
        return self.leave()

    def leave(self) -> RunResult:
        """Asked to go: what acts from here is seen through, what runs on hosts goes on."""
        self.world.background.leave(self.world)
        return RunResult(
            outcome="interrupted",
            reason="stopped on request; what runs on hosts goes on",
            started=tuple(self.started),
        )

    def round(self) -> bool:
        """One round that gives way when somebody's verb was quicker; True when all is idle."""
        try:
            idle = self.tick()
        except RACES:
            self._races += 1
            if self._races >= RACES_IN_A_ROW:
                raise
            return False
        self._races = 0
        return idle

    def _tell_adopted(self, snapshot: Snapshot) -> None:
        """Once, at the start: what went on while nobody looked."""
        for task, attempt in () if self._looked else live_attempts(snapshot):
            if task.state is not TaskState.SERVING:
                text = f"{task.id}: attempt {attempt.number} on {attempt.host} is followed again"
                self.world.emit(Info(text=text))
        self._looked = True

    def tick(self) -> bool:
        """One round; True when nothing moves and nothing can be started."""
        self.world.background.collect(self.world)
        snapshot = self.world.store.snapshot()
        self._tell_adopted(snapshot)
        observe(self.world, snapshot)
        snapshot = self.world.store.snapshot()
        self.resume_stops(snapshot)
        sweeping = sweep_lost(self.world, snapshot, self.in_scope)
        warn_of_rentals(self.world, snapshot)
        self.start_ready()
        shrink_old_jobs(self.world, self.world.store.snapshot())
        write_live(self.world.workspace, self.world.live)
        snapshot = self.world.store.snapshot()
        moving = any(task.state in MOVING for task in snapshot.tasks if self.in_scope(task))
        # What a worker found may not be taken over yet, though its task already stands still.
        if moving or sweeping or len(self.world.background) or self.pausing(snapshot):
            return False
        return not self.placement(snapshot).start

    def in_scope(self, task: Task) -> bool:
        """Whether this run is about the task."""
        return not task.removed and (not self.scope or task.id in self.scope)

    def placement(self, snapshot: Snapshot) -> Placement:
        """Ready tasks of this run that limits and exclusive resources allow now."""
        now = time.monotonic()
        later = {name for name, then in self.world.not_before.items() if then > now}
        return place(snapshot, wanted=self.in_scope, refused=later | self.world.refused.keys())

    def pausing(self, snapshot: Snapshot) -> bool:
        """Whether a task of this run is tried again after a pause that is not over."""
        now = time.monotonic()
        return any(
            then > now and snapshot.task(name).state is TaskState.READY
            for name, then in self.world.not_before.items()
        )

    def start_ready(self) -> None:
        """Starts what may start, on all hosts at once; each sees the state the one before left."""
        snapshot = self.world.store.snapshot()
        self.forget_ended_claims(snapshot)
        placement = self.placement(snapshot)
        for name, why in list(placement.waiting.items())[:WAITS_TOLD]:
            if why.startswith("waits for") and (name, why) not in self.world.told:
                self.world.told.add((name, why))
                self.world.emit(Info(text=f"{name} {why}"))
        for candidate in placement.start:
            snapshot = self.world.store.snapshot()
            task = snapshot.task(candidate.id)
            if task.state is TaskState.READY and not self.world.background.busy(start_key(task.id)):
                start(self.world, snapshot, task, fits=self.fits, began=self.started.append)
        self.world.background.settle(self.world, START_S)

    def fits(self, name: str) -> bool:
        """Whether a task may start as things are now: others were started meanwhile."""
        chosen = self.placement(self.world.store.snapshot()).start
        return any(task.id == name for task in chosen)

    def resume_stops(self, snapshot: Snapshot) -> None:
        """Finishes stops whose client went away half-way. Stopping twice does no harm."""
        now = time.monotonic()
        stopping = {
            attempt.id: (task, attempt)
            for task, attempt in live_attempts(snapshot)
            if attempt.state is AttemptState.STOPPING
        }
        self._stops = {name: self._stops.get(name, now) for name in stopping}
        for name, (task, attempt) in stopping.items():
            left = snapshot.meta.extra.get(PENDING_STOP + task.id) == name
            if attempt.host and snapshot.host(attempt.host).unreachable_since:
                continue  # at once when it answers
            if not left and now - self._stops[name] < STOP_TAKEN_OVER_S:
                continue
            reason = str(attempt.evidence.get(WHY_STOPPED) or task.reason or "stopped")
            by_person = reason.startswith(STOPPED_BY)
            then = TaskState.GATED if by_person else TaskState.FAILED
            if reason.startswith(RESTARTED_BY):
                then = TaskState.READY
            cls = FailureClass(attempt.evidence.get(CLASS_OF_STOP) or FailureClass.STOPPED)
            stop_beside(self.world, task, attempt, then=then, reason=reason, cls=cls)

    def forget_ended_claims(self, snapshot: Snapshot) -> None:
        """What was left to somebody who has let go since, or whose time is over, may start."""
        if not self.world.held:
            return  # every round comes by here
        for name in self.world.held.difference(self.claimed(snapshot)):
            self.world.held.remove(name)
            self.world.refused.pop(name, None)

    def claimed(self, snapshot: Snapshot) -> list[str]:
        """Tasks that were not started because somebody else has them."""
        actor, live = self.world.store.actor, live_claims(self.world.workspace, snapshot)
        names = self.world.refused
        return [name for name in names if blocking(snapshot, live, actor=actor, tasks=[name])]

    def result(self) -> RunResult:
        """Why nothing moves any more."""
        snapshot = self.world.store.snapshot()
        tasks = [task for task in snapshot.tasks if self.in_scope(task)]
        started = tuple(self.started)
        for outcome, states in (
            ("attention", {TaskState.ATTENTION, TaskState.UNHEALTHY}),
            ("failed", {TaskState.FAILED}),
        ):
            found = [task for task in tasks if task.state in states]
            if found:
                said = "; ".join(f"{task.id}: {task.reason or task.state}" for task in found)
                return RunResult(outcome=outcome, reason=said, started=started)
        claimed = self.claimed(snapshot)
        refused = [why for name, why in self.world.refused.items() if name not in claimed]
        if refused:
            return RunResult(outcome="blocked", reason="; ".join(refused), started=started)
        gated = [task for task in tasks if task.state is TaskState.GATED]
        if gated:
            said = "; ".join(f"{task.id} {task.reason}" for task in gated)
            over = any(is_over(task) for task in gated)
            return RunResult(outcome="budget" if over else "gate", reason=said, started=started)
        if claimed:
            said = "; ".join(self.world.refused[name] for name in claimed)
            return RunResult(outcome="held", reason=said, started=started)
        waiting = self.placement(snapshot).waiting
        if waiting:
            said = "; ".join(f"{name} {why}" for name, why in list(waiting.items())[:3])
            return RunResult(outcome="blocked", reason=said, started=started)
        left = [t for t in tasks if t.state not in SATISFIED and t.state is not TaskState.SERVING]
        if left:
            said = "; ".join(f"{task.id}: {task.reason or task.state}" for task in left[:3])
            return RunResult(outcome="blocked", reason=said, started=started)
        done = all_done(tasks) if not self.scope else "done as far as asked"
        return RunResult(outcome="done", reason=done, started=started)


def needed_for(snapshot: Snapshot, targets: Collection[str]) -> frozenset[str]:
    """The targets and everything they need, directly or not."""
    found: set[str] = set()
    queue = [snapshot.task(name) for name in targets]
    while queue:
        task = queue.pop()
        if task.id not in found:
            found.add(task.id)
            queue.extend(snapshot.task(need.task) for need in task.needs)
    return frozenset(found)
