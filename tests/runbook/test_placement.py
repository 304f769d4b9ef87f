"""What holds a ready task back: named resources of a machine, shared memory, limits."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from runbook.placement import place
from state import AttemptState, FailureClass, HostBinding, Store, TaskState, open_store
from tests.state.builders import graph, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "state.db", actor="x") as opened:
        yield opened


def fill(store: Store, text: str, *, shm_size: int = 0, **resources: tuple[str, ...]) -> None:
    defs = graph(text)
    load(store, [replace(one, resources=resources.get(one.id, ())) for one in defs])
    with store.write() as tx:
        facts = {"shm": {"size_bytes": shm_size}}
        tx.bind_host(HostBinding(role="box", kind="local", epoch="e1", facts=facts))


def begin(store: Store, name: str) -> str:
    with store.write() as tx:
        attempt = tx.create_attempt(name, host="box", epoch="e1")
        kind = tx.task(name).kind.value
        to = TaskState.STARTING if kind == "service" else TaskState.ACTIVE
        tx.move_task(name, to, expect={TaskState.READY})
        tx.move_attempt(attempt.id, AttemptState.RUNNING, expect={AttemptState.INTENDED})
    return attempt.id


def started(store: Store) -> list[str]:
    return [task.id for task in place(store.snapshot()).start]


def limit(store: Store, **limits: object) -> None:
    with store.write() as tx:
        tx.set_meta("limits", json.dumps(limits))


def test_a_gpu_goes_to_the_first_and_the_other_says_who_has_it(store: Store) -> None:
    fill(store, "a; b; c", a=("gpu:0",), b=("gpu:0", "gpu:1"), c=("gpu:2",))
    found = place(store.snapshot())
    assert [task.id for task in found.start] == ["a", "c"]
    assert found.waiting == {"b": "waits for gpu:0 of box, which a has"}


def test_a_service_has_its_port_as_long_as_it_serves_but_is_no_job(store: Store) -> None:
    fill(store, "s(service); a; b; c; d; e", s=("port:3000",), a=("port:3000",))
    begin(store, "s")
    found = place(store.snapshot())
    assert [task.id for task in found.start] == ["b", "c", "d", "e"], "four jobs beside it"
    assert found.waiting == {"a": "waits for port:3000 of box, which s has"}


def test_a_lost_attempt_may_still_sit_on_its_gpu(store: Store) -> None:
    fill(store, "a; b", a=("gpu:0",), b=("gpu:0",))
    attempt = begin(store, "a")
    with store.write() as tx:
        tx.move_attempt(
            attempt,
            AttemptState.LOST,
            expect={AttemptState.RUNNING},
            cls=FailureClass.LOST_SUPERVISOR_DIED,
        )
        tx.move_task("a", TaskState.ATTENTION, expect={TaskState.ACTIVE})
    assert started(store) == []
    assert "which a has" in place(store.snapshot()).waiting["b"]


def test_two_roles_on_one_machine_share_its_gpus(store: Store) -> None:
    defs = graph("a; b")
    load(
        store,
        [
            replace(defs[0], resources=("gpu:0",)),
            replace(defs[1], resources=("gpu:0",), role="bay"),
        ],
    )
    with store.write() as tx:
        tx.bind_host(HostBinding(role="box", kind="local", epoch="same"))
        tx.bind_host(HostBinding(role="bay", kind="ssh", address="here", epoch="same"))
    assert started(store) == ["a"]
    with store.write() as tx:
        tx.bind_host(HostBinding(role="bay", kind="ssh", address="there", epoch="another"))
    assert started(store) == ["a", "b"]


def test_shared_memory_is_counted_in_bytes(store: Store) -> None:
    gib = 1 << 30
    fill(
        store,
        "a; b; c; d",
        shm_size=10 * gib,
        a=(f"shm:{6 * gib}",),
        b=(f"shm:{5 * gib}",),
        c=(f"shm:{4 * gib}",),
        d=(f"shm:{11 * gib}",),
    )
    found = place(store.snapshot())
    assert [task.id for task in found.start] == ["a", "c"]
    assert found.waiting["b"] == (
        "waits for 5.0 GiB of /dev/shm of box: 6.0 GiB of 10.0 GiB are for a"
    )
    assert found.waiting["d"] == "needs 11.0 GiB of /dev/shm; box has 10.0 GiB"


def test_limits_count_jobs_of_a_host_and_of_all(store: Store) -> None:
    fill(store, "a; b; c; d; e; f")
    assert len(started(store)) == 4, "the default"
    limit(store, per_host={"box": 2})
    found = place(store.snapshot())
    assert [task.id for task in found.start] == ["a", "b"]
    assert found.waiting["c"] == "waits: 2 of 2 jobs run on box (a, b)"
    limit(store, **{"global": 1})
    begin(store, "a")
    found = place(store.snapshot())
    assert found.start == ()
    assert found.waiting["b"] == "waits: 1 of 1 jobs run (a)"
