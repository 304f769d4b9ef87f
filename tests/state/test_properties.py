"""Random verbs against the store: only tabled edges happen, and the events tell all of it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from state import AttemptState, FailureClass, HostBinding, StateError, TaskState, open_store
from state import journal as journal_module
from state.doctor import examine
from state.graph import readiness
from state.replay import replay
from state.transitions import ATTEMPT_EDGES, PENDING, TASK_EDGES, TERMINAL
from tests.state.builders import Clock, graph, load

if TYPE_CHECKING:
    from state import Snapshot, Verdict

GRAPHS = (
    "a; b: a; s(service): a; c: s any:b; m(manual): c",
    "a; b: a; c: b; m(manual): any:c",
    "s(service); c: s; d: c",
)
NAMES = st.sampled_from(["a", "b", "c", "d", "m", "s"])
EXPECT = st.sets(st.sampled_from(TaskState), max_size=3)


class Verbs(RuleBasedStateMachine):
    """What any client may do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = open_store(self.folder / "state.db", actor="random", clock=Clock())
        load(self.store, graph(GRAPHS[0]))
        self.seen = self.store.snapshot()

    def teardown(self) -> None:
        assert examine(self.folder / "state.db") == []  # all tables, told by all events
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(which=st.sampled_from(GRAPHS), version=st.sampled_from("123"), changed=NAMES)
    def load_file(self, which: str, version: str, changed: str) -> None:
        load(self.store, graph(which, **{changed: version}), digest=f"{which}{version}{changed}")

    @rule(
        moves=st.lists(
            st.tuples(NAMES, st.sampled_from(TaskState), EXPECT, st.booleans()),
            min_size=1,
            max_size=3,
        )
    )
    def move_tasks(self, moves: list[tuple[str, TaskState, set[TaskState], bool]]) -> None:
        try:
            with self.store.write() as tx:
                for name, to, expect, honest in moves:
                    found = tx.task(name).state
                    tx.move_task(name, to, expect={found} if honest else expect, reason=str(to))
                    assert to in TASK_EDGES[found]
        except StateError:
            assert self.store.snapshot() == self.seen

    @rule(name=NAMES, data=st.data())
    def walk_on(self, name: str, data: st.DataObject) -> None:
        """Legal moves only, or most runs would never get far."""
        try:
            found = self.seen.task(name).state
            to = data.draw(st.sampled_from(sorted(TASK_EDGES[found])))
            with self.store.write() as tx:
                tx.move_task(name, to, expect=[found])
        except StateError:
            assert self.store.snapshot() == self.seen

    @rule(name=NAMES, supersede=st.booleans())
    def begin(self, name: str, supersede: bool) -> None:
        try:
            with self.store.write() as tx:
                tx.create_attempt(
                    name, host="box", epoch="e", detail={"n": 1.5}, supersede=supersede
                )
        except StateError:
            assert self.store.snapshot() == self.seen

    @precondition(lambda self: self.seen.attempts)
    @rule(data=st.data(), to=st.sampled_from(AttemptState), cls=st.sampled_from(FailureClass))
    def move_attempt(self, data: st.DataObject, to: AttemptState, cls: FailureClass) -> None:
        attempt = data.draw(st.sampled_from(self.seen.attempts))
        evidence = {"seen": to.value, "loss": float("inf")}
        try:
            with self.store.write() as tx:
                tx.move_attempt(
                    attempt.id, to, expect=[attempt.state], cls=cls, exit_code=1, evidence=evidence
                )
            assert to in ATTEMPT_EDGES[attempt.state]
        except StateError:
            assert to not in ATTEMPT_EDGES[attempt.state]
            assert self.store.snapshot() == self.seen

    @rule(name=NAMES, verdict=st.sampled_from(["pass", "fail", "unknown"]), text=st.text())
    def record(self, name: str, verdict: Verdict, text: str) -> None:
        """What was found, said, made and allowed: all or nothing of it."""
        try:
            with self.store.write() as tx:
                spec = {"file": {"path": text}}
                tx.record_check(
                    name,
                    purpose="done",
                    name=text,
                    spec=spec,
                    verdict=verdict,
                    evidence={"loss": float("nan"), "text": text},
                )
                tx.record_artifact(name, uri=text, size=len(text), sha256="0" * 64)
                tx.approve(name, about="gate", reason=text)
                tx.add_note(text or "-", task=name, decision=verdict == "pass")
        except StateError:
            assert self.store.snapshot() == self.seen

    @rule(
        role=st.sampled_from(["box", "bay"]),
        address=st.sampled_from(["one", "two"]),
        price=st.none() | st.floats(min_value=0, max_value=99),
    )
    def bind(self, role: str, address: str, price: float | None) -> None:
        with self.store.write() as tx:
            tx.bind_host(HostBinding(role=role, kind="ssh", address=address, usd_per_hour=price))

    @rule(
        role=st.sampled_from(["box", "bay"]),
        epoch=st.sampled_from(["e1", "e2"]),
        then=st.sampled_from(["seen", "silent", "gone"]),
    )
    def meet(self, role: str, epoch: str, then: str) -> None:
        try:
            with self.store.write() as tx:
                tx.seen_host(role, epoch=epoch, facts={"n": 1}, identity={"boot_id": epoch})
                if then == "silent":
                    tx.set_unreachable(role)
                if then == "gone":
                    tx.unbind_host(role)
        except StateError:
            assert self.store.snapshot() == self.seen

    @rule(name=NAMES, value=st.floats() | st.text() | st.none())
    def set_out(self, name: str, value: float | str | None) -> None:
        try:
            with self.store.write() as tx:
                tx.set_out(name, {"value": value})
        except StateError:
            assert self.store.snapshot() == self.seen

    @rule(name=NAMES)
    def fail_in_the_middle(self, name: str) -> None:
        try:
            with self.store.write() as tx:
                tx.add_note("never seen")
                tx.create_attempt(name, host="box", epoch=None)
                raise KeyboardInterrupt
        except (StateError, KeyboardInterrupt):
            assert self.store.snapshot() == self.seen

    @invariant()
    def events_rebuild_the_tables(self) -> None:
        snapshot = self.store.snapshot()
        tasks, attempts = replay(self.store.events(limit=-1))
        assert tasks == snapshot.tasks
        assert attempts == snapshot.attempts
        assert list(journal_module.broken_links(self.store._conn())) == []
        self.seen = snapshot

    @invariant()
    def a_role_has_at_most_one_rental_that_goes_on(self) -> None:
        snapshot = self.store.snapshot()
        open_rentals = sorted(rental.role for rental in snapshot.rentals if rental.until is None)
        assert open_rentals == sorted(host.role for host in snapshot.hosts)

    @invariant()
    def pending_tasks_are_where_their_needs_put_them(self) -> None:
        snapshot = self.store.snapshot()
        for name, (state, reason) in readiness(snapshot.tasks).items():
            assert (snapshot.task(name).state, snapshot.task(name).reason) == (state, reason)
        assert not any(task.state is TaskState.DRAFT for task in snapshot.tasks if not task.removed)

    @invariant()
    def at_most_one_attempt_of_a_task_can_run(self) -> None:
        assert self.live_attempts(self.store.snapshot()) <= 1

    @staticmethod
    def live_attempts(snapshot: Snapshot) -> int:
        counts = [
            sum(attempt.state not in TERMINAL for attempt in snapshot.attempts_of(task.id))
            for task in snapshot.tasks
        ]
        return max(counts, default=0)


assert PENDING  # a new pending state must be thought of above

TestVerbs = Verbs.TestCase
TestVerbs.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
