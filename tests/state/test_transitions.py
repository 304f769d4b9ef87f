"""Every pair of states: what the tables have happens, what they lack raises and changes nothing."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING

import pytest

from state import AttemptState, IllegalTransition, StateMoved, TaskState
from state.transitions import (
    ATTEMPT_EDGES,
    SERVICE_ONLY,
    TASK_EDGES,
    TERMINAL,
    check_attempt_move,
    check_task_move,
)
from tests.state.builders import graph, load

if TYPE_CHECKING:
    from state import Store


class Undo(Exception):
    """Rolls the transaction of a test back."""


def test_the_tables_name_every_state() -> None:
    assert set(TASK_EDGES) == set(TaskState)
    assert set(ATTEMPT_EDGES) == set(AttemptState)


def test_every_task_state_but_draft_can_be_reached_and_left() -> None:
    reached = {to for ways in TASK_EDGES.values() for to in ways}
    assert reached == set(TaskState) - {TaskState.DRAFT}
    assert all(TASK_EDGES.values())


def test_an_attempt_never_returns_to_an_earlier_state() -> None:
    chain = [
        AttemptState.INTENDED,
        AttemptState.PUBLISHED,
        AttemptState.STARTED,
        AttemptState.RUNNING,
        AttemptState.EXITED,
        AttemptState.COLLECTING,
    ]
    for early, late in product(range(len(chain)), repeat=2):
        if early <= late:
            assert chain[early] not in ATTEMPT_EDGES[chain[late]]


def test_what_may_still_run_is_not_terminal() -> None:
    assert AttemptState.STOP_INCOMPLETE not in TERMINAL
    assert {"verified", "check_failed", "stopped", "never_started", "lost"} == TERMINAL


@pytest.mark.parametrize("service", [False, True])
@pytest.mark.parametrize("found", TaskState)
def test_task_edges(found: TaskState, service: bool) -> None:
    for to in TaskState:
        legal = to in TASK_EDGES[found] and (service or to not in SERVICE_ONLY)
        if legal:
            check_task_move("t", found, to, expect=[found], service=service)
        else:
            with pytest.raises(
                IllegalTransition, match=f"task t is {found} and cannot become {to}"
            ):
                check_task_move("t", found, to, expect=[found], service=service)
        with pytest.raises(StateMoved):
            check_task_move("t", found, to, expect=set(TaskState) - {found}, service=service)


@pytest.mark.parametrize("found", AttemptState)
def test_attempt_edges(found: AttemptState) -> None:
    for to in AttemptState:
        if to in ATTEMPT_EDGES[found]:
            check_attempt_move("a", found, to, expect=[found])
        else:
            with pytest.raises(IllegalTransition):
                check_attempt_move("a", found, to, expect=[found])
        with pytest.raises(StateMoved):
            check_attempt_move("a", found, to, expect=set(AttemptState) - {found})


@pytest.mark.parametrize("name", ["once", "server"])
def test_the_store_obeys_the_task_table(store: Store, name: str) -> None:
    load(store, graph("once; server(service)"))
    with suppress(Undo), store.write() as tx:
        for found, to in product(TaskState, repeat=2):
            tx.execute("UPDATE task SET state = ?, began_hash = ?", [found.value, f"{name}-1"])
            before = tx.revision
            if to in TASK_EDGES[found] and (name == "server" or to not in SERVICE_ONLY):
                assert tx.move_task(name, to, expect=[found]).state is to
                assert tx.revision == before + 1
            else:
                with pytest.raises(IllegalTransition):
                    tx.move_task(name, to, expect=[found])
                assert tx.revision == before
                assert tx.task(name).state is found
        raise Undo


def test_the_store_obeys_the_attempt_table(store: Store) -> None:
    load(store, graph("once"))
    with suppress(Undo), store.write() as tx:
        attempt = tx.create_attempt("once", host="box", epoch=None)
        for found, to in product(AttemptState, repeat=2):
            tx.execute("UPDATE attempt SET state = ?", [found.value])
            if to in ATTEMPT_EDGES[found]:
                assert tx.move_attempt(attempt.id, to, expect=[found]).state is to
            else:
                with pytest.raises(IllegalTransition):
                    tx.move_attempt(attempt.id, to, expect=[found])
                assert tx.attempt(attempt.id).state is found
        raise Undo
