"""Hours and money: what is counted, and what a start would come to."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runbook import report
from runbook.approvals import is_allowed, over_budget
from runbook.cli.cost import tell
from runbook.costs import Estimates, busy_seconds, measure, spell
from runbook.forecast import OUT, RAN_S, STEADY_S, forecasts
from state import AttemptState, FailureClass, HostBinding, Store, TaskKind, TaskState, open_store
from tests.state.builders import graph, load, task_def
from tests.support.golden import check_golden

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def passes(self, hours: float) -> None:
        self.now += timedelta(hours=hours)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with open_store(tmp_path / "state.db", actor="ann", clock=clock) as opened:
        yield opened


BOX = HostBinding(role="box", kind="ssh", address="a", usd_per_hour=10.0)


def fill(store: Store, text: str, binding: HostBinding = BOX, **extra: dict[str, object]) -> None:
    defs = graph(text)
    load(
        store,
        [replace(d, definition={**d.definition, **extra.get(d.id, {})}) for d in defs],
    )
    with store.write() as tx:
        tx.bind_host(binding)


def run(
    store: Store,
    clock: Clock,
    name: str,
    hours: float,
    *,
    host: str = "box",
    ran_s: float | None = None,
    steady_s: float | None = None,
    **out: float,
) -> None:
    with store.write() as tx:
        attempt = tx.create_attempt(name, host=host, epoch="e")
        tx.move_task(name, TaskState.ACTIVE, expect={TaskState.READY})
        tx.move_attempt(attempt.id, AttemptState.RUNNING, expect={AttemptState.INTENDED})
    clock.passes(hours)
    with store.write() as tx:
        tx.move_attempt(attempt.id, AttemptState.EXITED, expect={AttemptState.RUNNING})
        tx.move_attempt(attempt.id, AttemptState.COLLECTING, expect={AttemptState.EXITED})
        tx.move_task(name, TaskState.VERIFYING, expect={TaskState.ACTIVE})
        tx.move_attempt(
            attempt.id,
            AttemptState.VERIFIED,
            expect={AttemptState.COLLECTING},
            cls=FailureClass.OK,
            evidence={
                OUT: out,
                **({} if ran_s is None else {RAN_S: ran_s}),
                **({} if steady_s is None else {STEADY_S: steady_s}),
            },
        )
        tx.move_task(name, TaskState.DONE, expect={TaskState.VERIFYING})


def why(store: Store, clock: Clock, name: str) -> str:
    snapshot = store.snapshot()
    return over_budget(snapshot, snapshot.task(name), clock.now)


def test_money_of_tasks_and_of_machines(store: Store, clock: Clock) -> None:
    fill(store, "a; b", b={"estimate_s": 7200})
    run(store, clock, "a", 2)
    clock.passes(1)  # idle, and paid
    with store.write() as tx:
        tx.bind_host(replace(BOX, address="b", usd_per_hour=20.0))
    clock.passes(0.5)
    costs = measure(store.snapshot(), clock.now)
    done, to_come = costs.tasks
    assert (done.hours, done.usd) == (2.0, 20.0)
    assert to_come.to_come is not None
    assert (to_come.to_come.source, to_come.to_come_usd) == ("stated", 40.0)
    (host,) = costs.hosts
    assert (host.bound_hours, host.bound_usd, host.busy_hours) == (0.5, 10.0, 2.0)
    assert (costs.earlier_usd, costs.spent_usd) == (30.0, 40.0)


def test_the_chain_that_takes_longest_is_named(store: Store, clock: Clock) -> None:
    hour = {"estimate_s": 3600}
    fill(store, "a; b: a; c: b; d; e: c d", a=hour, b=hour, d={"estimate_s": 7300}, e=hour)
    costs = measure(store.snapshot(), clock.now)
    assert costs.critical_path == ("d", "e")
    run(store, clock, "d", 2)
    costs = measure(store.snapshot(), clock.now)
    assert (costs.critical_path, costs.critical_hours) == (("a", "b", "e"), 3.0)


def test_a_rental_that_goes_on_at_another_price_is_counted_in_parts(
    store: Store, clock: Clock
) -> None:
    fill(store, "a")
    clock.passes(1)
    with store.write() as tx:
        tx.bind_host(replace(BOX, usd_per_hour=5.0, ends_at="2026-03-09T00:00:00.000Z"))
        tx.bind_host(replace(BOX, usd_per_hour=5.0))  # the same again: nothing new
    clock.passes(2)
    assert len(store.snapshot().rentals) == 2
    assert measure(store.snapshot(), clock.now).spent_usd == 20.0


def test_hours_that_overlap_are_busy_once(store: Store, clock: Clock) -> None:
    fill(store, "a; b")
    with store.write() as tx:
        tx.create_attempt("a", host="box", epoch="e")
        tx.create_attempt("b", host="box", epoch="e")
    clock.passes(3)
    assert busy_seconds(store.snapshot().attempts, clock.now) == 3 * 3600


def test_what_outlasts_the_rental_is_not_started_unasked(store: Store, clock: Clock) -> None:
    ends = replace(BOX, ends_at="2026-03-01T15:00:00.000Z")
    fill(
        store,
        "long; short; unknown",
        ends,
        long={"estimate_s": 17 * 3600},
        short={"estimate_s": 60},
    )
    assert why(store, clock, "long") == (
        "rental too short: it needs about 17 h (stated), and that of box ends in 3 h"
    )
    assert why(store, clock, "short") == ""
    assert why(store, clock, "unknown") == ""
    clock.passes(4)
    ended = "rental ended: that of box, at 2026-03-01 15:00Z"
    assert why(store, clock, "unknown") == ended
    snapshot = store.snapshot()
    server = replace(snapshot.task("short"), kind=TaskKind.SERVICE)
    assert over_budget(snapshot, server, clock.now) == ended, "nor is a server"


def test_budgets_of_a_task_and_of_the_run(store: Store, clock: Clock) -> None:
    fill(
        store,
        "a; b; c",
        a={"estimate_s": 3600, "budget": {"hours": 0.5}},
        b={"estimate_s": 3600, "budget": {"usd": 9}},
        c={"estimate_s": 3600},
    )
    assert "its budget is 30 min" in why(store, clock, "a")
    assert "its budget is $9.00, $0.00 are spent, and it would cost $10.00" in why(
        store, clock, "b"
    )
    assert why(store, clock, "c") == ""
    with store.write() as tx:
        tx.set_meta("budget", json.dumps({"usd": 25}))
    clock.passes(2)
    assert "the budget is $25.00, $20.00 are spent" in why(store, clock, "c")


def test_a_yes_is_to_one_start_of_one_definition(store: Store, clock: Clock) -> None:
    fill(store, "a; b")
    with store.write() as tx:
        tx.approve("a", about="budget", reason="it must be")
        tx.approve("b", about="gate", reason="another question")
    snapshot = store.snapshot()
    assert is_allowed(snapshot, snapshot.task("a"))
    assert not is_allowed(snapshot, snapshot.task("b"))
    run(store, clock, "a", 1)
    snapshot = store.snapshot()
    assert not is_allowed(snapshot, snapshot.task("a"))


def test_an_estimate_is_measured_where_it_can_be_also_on_others_of_the_family(
    store: Store, clock: Clock
) -> None:
    fill(store, "make[0]; make[1]; other", **{"make[1]": {"estimate_s": 60}})
    estimates = Estimates(store.snapshot())
    stated = estimates.of(store.snapshot().task("make[1]"))
    assert stated is not None
    assert stated.source == "stated"
    run(store, clock, "make[0]", 2)
    snapshot = store.snapshot()
    found = Estimates(snapshot).of(snapshot.task("make[1]"))
    assert found is not None
    assert (found.seconds, found.source) == (7200.0, "measured")
    assert Estimates(snapshot).of(snapshot.task("other")) is None


@pytest.mark.parametrize(
    ("hours", "said"), [(17, "17 h"), (3.2, "3 h 12 min"), (0.4, "24 min"), (0.01, "36 s")]
)
def test_hours_for_people(hours: float, said: str) -> None:
    assert spell(hours) == said


LIKE = {"estimate_like": {"like": "pilot", "of": "rows", "amount": 90_000.0}}


def test_a_large_task_is_estimated_by_the_rate_of_a_small_one(store: Store, clock: Clock) -> None:
    fill(store, "pilot; all: pilot", all=LIKE)
    assert Estimates(store.snapshot()).of(store.snapshot().task("all")) is None, "not measured"
    run(store, clock, "pilot", 0.25, rows=500, tokens=1_000_000)
    found = Estimates(store.snapshot()).of(store.snapshot().task("all"))
    assert found is not None
    assert (found.seconds / 3600, found.source) == (45.0, "rate of pilot")
    (row,) = measure(store.snapshot(), clock.now).machines
    assert (row.task, row.hours, row.usd, row.tokens) == ("all", 45.0, 450.0, 180e6)
    assert row.bytes is None, "the pilot did not say"


def test_machines_that_a_pilot_ran_on_are_compared(store: Store, clock: Clock) -> None:
    fill(store, "pilot; all: pilot", all=LIKE)
    run(store, clock, "pilot", 0.25, rows=500)
    with store.write() as tx:
        tx.bind_host(replace(BOX, address="b", usd_per_hour=32.0))
        tx.move_task("pilot", TaskState.STALE, expect={TaskState.DONE})
        tx.move_task("pilot", TaskState.READY, expect={TaskState.STALE})
    clock.passes(0.5)
    run(store, clock, "pilot", 0.1, rows=500)
    slow, fast = forecasts(store.snapshot())
    assert (slow.hours, slow.usd) == (45.0, 450.0)
    assert (fast.hours, fast.usd) == (pytest.approx(18.0), pytest.approx(576.0))
    assert slow.machine != fast.machine
    found = Estimates(store.snapshot()).of(store.snapshot().task("all"))
    assert found is not None
    assert found.seconds / 3600 == pytest.approx(18.0), "the machine that is there now"


def test_a_pilot_that_was_resumed_is_no_faster_for_it(store: Store, clock: Clock) -> None:
    fill(store, "pilot; all: pilot", all=LIKE)
    run(store, clock, "pilot", 0.25, rows=500)
    with store.write() as tx:
        tx.move_task("pilot", TaskState.STALE, expect={TaskState.DONE})
        tx.move_task("pilot", TaskState.READY, expect={TaskState.STALE})
    run(store, clock, "pilot", 0.01, rows=500)
    (row,) = forecasts(store.snapshot())
    assert row.hours == pytest.approx(0.26 * 180)


def test_a_family_shares_the_amount(store: Store, clock: Clock) -> None:
    each = {
        f"all@{box}": {"estimate_like": {**LIKE["estimate_like"], "like": f"pilot@{box}"}}
        for box in "ab"
    }
    fill(store, "pilot@a; pilot@b; all@a: pilot@a; all@b: pilot@b", **each)
    run(store, clock, "pilot@a", 0.25, rows=500)
    run(store, clock, "pilot@b", 0.5, rows=500)
    coming = {row.task: row.to_come for row in measure(store.snapshot(), clock.now).tasks}
    hours = [coming[f"all@{box}"].seconds / 3600 for box in "ab"]
    assert hours == [22.5, 45.0], "half of it each, at its own rate"


def test_what_ended_while_nobody_looked_took_no_longer_for_it(store: Store, clock: Clock) -> None:
    fill(store, "pilot; all: pilot", all=LIKE)
    run(store, clock, "pilot", 9, ran_s=900, rows=500)  # a laptop that slept through the night
    estimates = Estimates(store.snapshot())
    found = [estimates.of(store.snapshot().task(name)) for name in ("pilot", "all")]
    assert [one.seconds / 3600 for one in found if one] == [0.25, 45.0]


GPUS = {"gpus": [{"name": "NVIDIA H200 SXM"}] * 8}
HOSTS = [
    HostBinding(
        role=f"gen-{number}" if number < 8 else "trainer-of-the-drafter", kind="ssh", user="root",
        address=f"ssh{number}.provider.example", port=41000 + number, usd_per_hour=17.5 + number,
        ends_at="2026-03-03T18:00:00.000Z" if number == 8 else None, facts=GPUS,
    )
    for number in range(1, 9)
]  # fmt: skip


def fleet(store: Store, clock: Clock, hosts: list[HostBinding]) -> None:
    """A pilot on each of some machines; all of it, and a training, are still to come."""
    of = {"of": "rows", "amount": 900_000}
    stated = {"estimate_s": 60 * 3600}
    roles = [host.role for host in hosts]
    pilots = [replace(task_def(f"pilot@{role}"), role=role) for role in roles]
    whole = [
        replace(
            task_def(f"generate@{role}", [f"pilot@{role}"]), role=role,
            definition={"estimate_like": {"like": f"pilot@{role}", **of}},
        )
        for role in roles
    ]  # fmt: skip
    train = replace(task_def("train-the-drafter"), role=roles[-1], definition=stated)
    defs = [*pilots, *whole, train, task_def("publish", ["train-the-drafter"])]
    load(store, [replace(one, position=number) for number, one in enumerate(defs)])
    with store.write() as tx:
        for host in hosts:
            tx.bind_host(host)
    for number, role in enumerate(roles):
        tokens = 5_000_000 + number * 1000
        run(store, clock, f"pilot@{role}", 1 + number / 7, host=role, rows=900, tokens=tokens)
    clock.passes(30)


@pytest.mark.parametrize("many", [1, 3, 8])
def test_what_it_costs_is_readable_at_eighty_columns(
    store: Store, clock: Clock, capsys: pytest.CaptureFixture[str], many: int
) -> None:
    fleet(store, clock, HOSTS[-many:])
    snapshot = store.snapshot()
    tell(snapshot, measure(snapshot, clock.now))
    said = capsys.readouterr().out
    tables, _, _total = said.rpartition("\n\n")
    assert max(map(len, tables.splitlines())) <= report.WIDTH
    for host in HOSTS[-many:]:
        assert host.role in tables
        assert host.machine in tables
    check_golden(GOLDEN / f"costs-of-{many}.txt", said)


def test_ramp_and_tail_of_a_pilot_count_once(store: Store, clock: Clock) -> None:
    fill(store, "pilot; all: pilot", all=LIKE)
    run(store, clock, "pilot", 0.25, steady_s=600, rows=500, tokens=1_000_000)
    found = Estimates(store.snapshot()).of(store.snapshot().task("all"))
    assert found is not None
    assert found.seconds == pytest.approx(300 + 180 * 600)
    (row,) = forecasts(store.snapshot())
    assert row.hours == pytest.approx(30 + 300 / 3600)
    assert (row.per_hour, row.tokens) == (3000.0, pytest.approx(180e6))
    again = Estimates(store.snapshot()).of(store.snapshot().task("pilot"))
    assert again is not None
    assert again.seconds == 900, "of itself it is still all its time"
