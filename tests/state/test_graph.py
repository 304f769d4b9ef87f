"""Order, cycles, and why a task waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state import StateError, TaskState, UnknownTask
from state.graph import critical_path, descendants, find_cycle, ready, topological
from tests.state.builders import graph, load, state_of, task_def

if TYPE_CHECKING:
    from state import Store


@pytest.mark.parametrize(
    ("text", "cycle"),
    [
        ("a; b: a; c: a b", None),
        ("a: a", ["a", "a"]),
        ("a: b; b: c; c: a", ["a", "b", "c", "a"]),
        ("x; a: x b; b: a", ["a", "b", "a"]),
        ("a: nowhere", None),
    ],
)
def test_find_cycle(text: str, cycle: list[str] | None) -> None:
    assert find_cycle(graph(text)) == cycle


def test_a_chain_of_five_thousand_is_no_problem() -> None:
    defs = [task_def(f"t{n}", [f"t{n + 1}"] if n < 4999 else [], position=n) for n in range(5000)]
    assert find_cycle(defs) is None
    assert topological(defs)[0] == "t4999"


@settings(max_examples=50)
@given(st.data())
def test_topological_order_respects_every_need(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    order = data.draw(st.permutations(range(count)))
    defs = [
        task_def(
            f"t{n}",
            [f"t{m}" for m in data.draw(st.sets(st.sampled_from(order[:at])))] if at else [],
            position=data.draw(st.integers(0, 5)),
        )
        for at, n in enumerate(order)
    ]
    result = topological(defs)
    assert sorted(result) == sorted(definition.id for definition in defs)
    for definition in defs:
        for need in definition.needs:
            assert result.index(need.task) < result.index(definition.id)
    assert find_cycle(defs) is None


def test_topological_order_is_the_order_of_the_file_where_it_may_be() -> None:
    assert topological(graph("c; a; b")) == ["c", "a", "b"]
    assert topological(graph("c: b; a; b")) == ["a", "b", "c"]


def test_a_cycle_has_no_order() -> None:
    with pytest.raises(ValueError, match="cycle"):
        topological(graph("a: b; b: a"))


def test_descendants_in_file_order(store: Store) -> None:
    load(store, graph("a; b: a; c: b; d; e: a c"))
    assert descendants(store.snapshot(), "a") == ("b", "c", "e")
    with pytest.raises(UnknownTask):
        descendants(store.snapshot(), "zz")


def finish(store: Store, name: str, end: TaskState = TaskState.DONE) -> None:
    with store.write() as tx:
        tx.move_task(name, TaskState.ACTIVE, expect=[TaskState.READY])
        tx.move_task(name, TaskState.VERIFYING, expect=[TaskState.ACTIVE])
        tx.move_task(name, end, expect=[TaskState.VERIFYING])


def test_a_finished_task_frees_those_behind_it(store: Store) -> None:
    load(store, graph("a; b: a; c: b"))
    assert state_of(store) == {"a": "ready", "b": "blocked", "c": "blocked"}
    assert store.snapshot().task("c").reason == "waits for b"
    finish(store, "a")
    assert state_of(store) == {"a": "done", "b": "ready", "c": "blocked"}
    assert [task.id for task in ready(store.snapshot())] == ["b"]


def test_a_failed_need_is_named_and_its_retry_frees_the_rest(store: Store) -> None:
    load(store, graph("a; b: a"))
    finish(store, "a", TaskState.FAILED)
    assert store.snapshot().task("b").reason == "waits for a (failed)"
    with store.write() as tx:
        tx.move_task("a", TaskState.READY, expect=[TaskState.FAILED])
    finish(store, "a")
    assert state_of(store)["b"] == "ready"


def test_a_need_that_is_no_longer_done_blocks_again(store: Store) -> None:
    load(store, graph("a; b: a"))
    finish(store, "a")
    with store.write() as tx:
        tx.move_task("a", TaskState.STALE, expect=[TaskState.DONE], reason="the host was rebuilt")
    task = store.snapshot().task("b")
    assert (task.state, task.reason) == (TaskState.BLOCKED, "waits for a (stale)")


@pytest.mark.parametrize(("end", "then"), [(TaskState.DONE, "ready"), (TaskState.FAILED, "ready")])
def test_condition_any_wants_an_end_of_whatever_kind(
    store: Store, end: TaskState, then: str
) -> None:
    load(store, graph("a; clean: any:a"))
    finish(store, "a", end)
    assert state_of(store)["clean"] == then


def test_a_skipped_need_is_met(store: Store) -> None:
    load(store, graph("a; b: a; c: any:a"))
    with store.write() as tx:
        tx.move_task("a", TaskState.SKIPPED, expect=[TaskState.READY], reason="not wanted")
    assert state_of(store) == {"a": "skipped", "b": "ready", "c": "ready"}


def test_only_a_serving_service_meets_a_need(store: Store) -> None:
    load(store, graph("server(service); generate: server"))
    with store.write() as tx:
        tx.move_task("server", TaskState.STARTING, expect=[TaskState.READY])
    assert state_of(store)["generate"] == "blocked"
    with store.write() as tx:
        tx.move_task("server", TaskState.SERVING, expect=[TaskState.STARTING])
    assert state_of(store)["generate"] == "ready"
    with store.write() as tx:
        tx.move_task("server", TaskState.DRAINING, expect=[TaskState.SERVING])
    assert state_of(store)["generate"] == "blocked"
    with store.write() as tx:
        tx.move_task("server", TaskState.DONE, expect=[TaskState.DRAINING])
    assert "must serve again" in store.snapshot().task("generate").reason


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: b; b: a", "circle"), ("a: nope", "not in the runbook"), ("a; a", "defined twice")],
)
def test_a_graph_that_is_none_is_refused_whole(store: Store, text: str, words: str) -> None:
    before = store.revision()
    with pytest.raises(StateError, match=words):
        load(store, graph(text))
    assert store.revision() == before
    assert store.snapshot().tasks == ()


def test_the_longest_chain_by_time_not_by_number() -> None:
    defs = [
        task_def("a", position=0),
        task_def("b", ["a"], position=1),
        task_def("c", ["b"], position=2),
        task_def("slow", ["a"], position=3),
        task_def("end", ["c", "slow"], position=4),
        task_def("alone", position=5),
    ]
    times = {"a": 10.0, "b": 1.0, "c": 1.0, "slow": 60.0, "alone": 65.0}
    assert critical_path(defs, times) == ("a", "slow")
    assert critical_path(defs, {**times, "end": 5.0}) == ("a", "slow", "end")
    assert critical_path(defs, {}) == ()
