"""The write transaction: all or nothing, compare and set, one event for each change."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from typing import TYPE_CHECKING

import pytest

from state import (
    AttemptState,
    FailureClass,
    HostBinding,
    IllegalTransition,
    NotRunnable,
    PreviousAttemptLive,
    RevisionMoved,
    StateError,
    StateMoved,
    TaskState,
    UnknownAttempt,
    UnknownHost,
    UnknownTask,
    open_store,
)
from state.doctor import examine
from state.export import copy_database
from state.schema import MIGRATIONS
from tests.state.builders import Clock, graph, load, state_of

if TYPE_CHECKING:
    from pathlib import Path

    from state import Attempt, Store
    from state.writing import Tx


def test_a_new_store_has_an_identity_and_one_event(store: Store) -> None:
    snapshot = store.snapshot()
    assert snapshot.revision == 1
    assert len(snapshot.meta.workspace_id) == 26
    assert snapshot.meta.schema_version == len(MIGRATIONS)
    assert snapshot.tasks == ()


def test_opening_again_finds_everything_and_writes_nothing(store: Store, db: Path) -> None:
    load(store, graph("a; b: a"))
    before = store.snapshot()
    with open_store(db, actor="other") as again:
        assert again.snapshot() == before


def test_a_runbook_loads_to_ready_and_blocked(store: Store) -> None:
    report = load(store, graph("a; b: a"))
    assert report.new == ("a", "b")
    snapshot = store.snapshot()
    assert (snapshot.meta.name, snapshot.meta.runbook_hash) == ("drafter", "d1")
    assert state_of(store) == {"a": "ready", "b": "blocked"}


def test_loading_the_same_file_twice_is_no_change(store: Store) -> None:
    load(store, graph("a; b: a"))
    revision = store.revision()
    report = load(store, graph("a; b: a"))
    assert (report.new, report.changed, report.removed) == ((), (), ())
    assert store.revision() == revision


def run_to(tx: Tx, name: str, *path: TaskState) -> None:
    for to in path:
        tx.move_task(name, to, expect=[tx.task(name).state])


DONE = (TaskState.ACTIVE, TaskState.VERIFYING, TaskState.DONE)


def test_a_changed_definition_makes_only_what_was_done_stale(store: Store) -> None:
    load(store, graph("a; b; c; d"))
    with store.write() as tx:
        run_to(tx, "a", *DONE)
        run_to(tx, "b", TaskState.ACTIVE, TaskState.FAILED)
    report = load(store, graph("a; b; c; d", a="2", b="2", c="2"), digest="d2")
    assert report.changed == ("a", "b", "c")
    assert state_of(store) == {"a": "stale", "b": "failed", "c": "ready", "d": "ready"}
    assert store.snapshot().task("c").definition_hash == "c-2"


def test_a_definition_edited_in_mid_run_ends_stale(store: Store) -> None:
    load(store, graph("a; b: a"))
    with store.write() as tx:
        run_to(tx, "a", TaskState.ACTIVE)
    load(store, graph("a; b: a", a="2"), digest="d2")
    assert state_of(store)["a"] == "active"
    with store.write() as tx:
        run_to(tx, "a", TaskState.VERIFYING)
        assert tx.move_task("a", TaskState.DONE, expect=[TaskState.VERIFYING]).state == "stale"
    assert state_of(store) == {"a": "stale", "b": "blocked"}
    with store.write() as tx:
        run_to(tx, "a", TaskState.READY, *DONE)
    assert state_of(store) == {"a": "done", "b": "ready"}


def test_a_cosmetic_edit_changes_the_title_only(store: Store) -> None:
    load(store, graph("a"))
    with store.write() as tx:
        run_to(tx, "a", *DONE)
    from dataclasses import replace

    report = load(store, [replace(graph("a")[0], title="Nicer")], digest="d2")
    assert report.changed == ()
    task = store.snapshot().task("a")
    assert (task.title, task.state) == ("Nicer", TaskState.DONE)


def test_a_removed_task_keeps_its_history_and_can_come_back(store: Store) -> None:
    load(store, graph("a; b: a"))
    with store.write() as tx:
        run_to(tx, "a", *DONE)
    assert load(store, graph("b"), digest="d2").removed == ("a",)
    assert store.snapshot().task("a").removed
    assert state_of(store) == {"b": "ready", "a": "done"}
    assert load(store, graph("a; b: a"), digest="d3").changed == ("a",)
    assert state_of(store) == {"a": "done", "b": "ready"}


def test_a_write_that_raises_leaves_nothing(store: Store) -> None:
    load(store, graph("a"))
    before = store.snapshot()

    def change_and_raise() -> None:
        with store.write() as tx:
            tx.move_task("a", TaskState.ACTIVE, expect=[TaskState.READY])
            tx.add_note("never to be seen")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_and_raise()
    assert store.snapshot() == before


def test_an_illegal_move_in_the_middle_rolls_back_the_legal_ones(store: Store) -> None:
    load(store, graph("a; b"))
    before = store.snapshot()

    def move_both() -> None:
        with store.write() as tx:
            tx.move_task("a", TaskState.ACTIVE, expect=[TaskState.READY])
            tx.move_task("b", TaskState.DONE, expect=[TaskState.READY])

    with pytest.raises(IllegalTransition):
        move_both()
    assert store.snapshot() == before


def test_compare_and_set_names_what_it_found(store: Store) -> None:
    load(store, graph("a"))
    with pytest.raises(StateMoved, match="a is ready, not active") as caught, store.write() as tx:
        tx.move_task("a", TaskState.VERIFYING, expect=[TaskState.ACTIVE])
    assert "read the state again" in caught.value.hint


def test_a_blocked_task_cannot_be_started_even_from_a_gate(store: Store) -> None:
    load(store, graph("a; b: a"))
    with store.write() as tx:
        run_to(tx, "a", *DONE)

    def void_its_need_meanwhile() -> None:
        with store.write() as tx:
            tx.move_task("b", TaskState.GATED, expect=[TaskState.READY])
            tx.move_task("a", TaskState.STALE, expect=[TaskState.DONE])
            tx.move_task("b", TaskState.ACTIVE, expect=[TaskState.GATED])

    with pytest.raises(NotRunnable, match="waits for a"):
        void_its_need_meanwhile()


def test_the_revision_that_was_looked_at_must_still_be_the_last(store: Store) -> None:
    load(store, graph("a"))
    seen = store.revision()
    with store.write(expect_rev=seen) as tx:
        tx.add_note("first")
    with pytest.raises(RevisionMoved) as caught, store.write(expect_rev=seen) as tx:
        tx.add_note("second")
    assert (caught.value.expected, caught.value.found) == (seen, seen + 1)
    assert [event.kind for event in caught.value.since] == ["note.added"]
    assert [note.text for note in store.snapshot().notes] == ["first"]


def test_unknown_names_come_with_the_nearest_known(store: Store) -> None:
    load(store, graph("tokenize; train"))
    with pytest.raises(UnknownTask) as caught:
        store.snapshot().task("tokenise")
    assert caught.value.near[0] == "tokenize"
    with pytest.raises(UnknownTask), store.write() as tx:
        tx.move_task("tokenise", TaskState.ACTIVE, expect=[TaskState.READY])
    with pytest.raises(UnknownAttempt), store.write() as tx:
        tx.move_attempt("nope", AttemptState.LOST, expect=[AttemptState.RUNNING])
    with pytest.raises(UnknownHost), store.write() as tx:
        tx.seen_host("nope", epoch=None)
    with pytest.raises(UnknownHost):
        store.snapshot().host("nope")


def attempt_at(store: Store, *path: AttemptState) -> Attempt:
    with store.write() as tx:
        attempt = tx.create_attempt("a", host="box", epoch="e1", detail={"argv": ["x"]})
        for to in path:
            attempt = tx.move_attempt(attempt.id, to, expect=[attempt.state])
    return attempt


@pytest.mark.parametrize(
    "state",
    [
        AttemptState.PUBLISHED,
        AttemptState.STARTED,
        AttemptState.RUNNING,
        AttemptState.EXITED,
        AttemptState.STOPPING,
    ],
)
def test_a_second_attempt_beside_a_live_one_is_refused(store: Store, state: AttemptState) -> None:
    load(store, graph("a"))
    attempt_at(store, state)
    with pytest.raises(PreviousAttemptLive, match=state.value), store.write() as tx:
        tx.create_attempt("a", host="box", epoch="e1")
    with pytest.raises(PreviousAttemptLive), store.write() as tx:
        tx.create_attempt("a", host="box", epoch="e1", supersede=True)


def test_survivors_of_a_stop_forbid_a_retry(store: Store) -> None:
    load(store, graph("a"))
    attempt_at(store, AttemptState.STOPPING, AttemptState.STOP_INCOMPLETE)
    with pytest.raises(PreviousAttemptLive), store.write() as tx:
        tx.create_attempt("a", host="box", epoch="e1", supersede=True)


def test_a_lost_attempt_is_superseded_only_on_request(store: Store) -> None:
    load(store, graph("a"))
    lost = attempt_at(store, AttemptState.RUNNING)
    with store.write() as tx:
        moved = tx.move_attempt(
            lost.id,
            AttemptState.LOST,
            expect=[AttemptState.RUNNING],
            cls=FailureClass.LOST_REBOOT,
            evidence={"boot": "other"},
        )
    assert moved.lost_reason == "reboot"
    with pytest.raises(PreviousAttemptLive) as caught, store.write() as tx:
        tx.create_attempt("a", host="box", epoch="e2")
    assert "supersede" in caught.value.hint
    with store.write() as tx:
        second = tx.create_attempt("a", host="box", epoch="e2", supersede=True)
    first = store.snapshot().attempts_of("a")[0]
    assert first.superseded_by == second.id
    assert (second.number, second.generation) == (2, 2)


def test_the_generation_only_grows_and_may_leap(store: Store) -> None:
    load(store, graph("a"))
    end = (AttemptState.NEVER_STARTED,)
    assert attempt_at(store, *end).generation == 1
    with store.write() as tx:
        leapt = tx.create_attempt("a", host="box", epoch=None, generation=7)
        tx.move_attempt(leapt.id, *end, expect=[AttemptState.INTENDED])
        assert tx.create_attempt("a", host="box", epoch=None, generation=3).generation == 8


def test_evidence_and_times_gather_over_the_moves(store: Store) -> None:
    load(store, graph("a"))
    attempt = attempt_at(store, AttemptState.PUBLISHED)
    assert attempt.started_at is None
    with store.write() as tx:
        running = tx.move_attempt(
            attempt.id,
            AttemptState.RUNNING,
            expect=[AttemptState.PUBLISHED],
            started_at="2026-03-01T11:59:59.000Z",
            evidence={"pid": 7},
        )
        exited = tx.move_attempt(
            attempt.id,
            AttemptState.EXITED,
            expect=[AttemptState.RUNNING],
            cls=FailureClass.EXIT,
            exit_code=3,
            evidence={"loss": float("nan"), "tail": "\udcff\x00"},
        )
    assert running.started_at == exited.started_at == "2026-03-01T11:59:59.000Z"
    assert exited.ended_at is not None
    assert (exited.exit_code, exited.cls) == (3, FailureClass.EXIT)
    assert exited.evidence == {"pid": 7, "loss": "nan", "tail": "\udcff\x00"}
    assert store.snapshot().latest_attempt("a") == exited


def test_polling_a_host_moves_the_revision_only_with_news(store: Store) -> None:
    with store.write() as tx:
        tx.bind_host(HostBinding(role="box", kind="ssh", address="10.0.0.1", user="root"))
        tx.seen_host("box", epoch="e1", facts={"gpus": 8})
    revision = store.revision()
    with store.write() as tx:
        tx.seen_host("box", epoch="e1", facts={"gpus": 8})
        tx.seen_host("box", epoch=None)
        tx.set_unreachable("box", flag=False)
    assert store.revision() == revision
    seen = store.snapshot().host("box").seen_at
    with store.write() as tx:
        tx.set_unreachable("box", flag=True)
        tx.set_unreachable("box", flag=True)
    assert store.revision() == revision + 1
    host = store.snapshot().host("box")
    assert host.unreachable_since is not None
    assert (host.epoch, host.facts, host.seen_at) == ("e1", {"gpus": 8}, seen)
    with store.write() as tx:
        tx.seen_host("box", epoch="e2")
    assert store.events(after=revision + 1)[0].payload == {
        "epoch": "e2",
        "was_epoch": "e1",
        "unreachable_since": None,
    }


def test_checks_show_the_latest_run_of_each(store: Store) -> None:
    load(store, graph("a"))
    with store.write() as tx:
        for verdict in ("unknown", "fail", "pass"):
            tx.record_check("a", purpose="done", name="f", spec={"file": {}}, verdict=verdict)
        tx.record_check("a", purpose="ready", name="f", spec={}, verdict="fail", epoch="e1")
        tx.record_artifact("a", uri="file:///x", size=3, sha256="0" * 64)
        tx.add_note("use block size 8", task="a", decision=True)
    snapshot = store.snapshot()
    assert [(c.purpose, c.verdict) for c in snapshot.checks_of("a")] == [
        ("done", "pass"),
        ("ready", "fail"),
    ]
    assert snapshot.artifacts[0].size == 3
    assert snapshot.notes[0].decision
    with pytest.raises(StateError, match="empty"), store.write() as tx:
        tx.add_note("  \n")


def test_meta_keeps_what_it_is_given(store: Store) -> None:
    with store.write() as tx:
        tx.set_meta("approved_digest", "abc")
        tx.set_meta("approved_digest", "abc")
    assert store.revision() == 2
    assert store.snapshot().meta.extra == {"approved_digest": "abc"}


def test_out_is_handed_on_and_repeated_for_free(store: Store) -> None:
    load(store, graph("a"))
    with store.write() as tx:
        tx.set_out("a", {"path": "/x", "rows": 3})
    revision = store.revision()
    with store.write() as tx:
        tx.set_out("a", {"rows": 3, "path": "/x"})
    assert store.revision() == revision
    assert store.snapshot().task("a").out == {"path": "/x", "rows": 3}


def test_events_are_read_by_number_and_by_task(store: Store) -> None:
    load(store, graph("a; b"))
    with store.write() as tx:
        tx.create_attempt("b", host="box", epoch=None)
    events = store.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert store.events(after=2, limit=1)[0].seq == 3
    assert [event.kind for event in store.events(task="b")] == [
        "task.added",
        "task.moved",
        "attempt.created",
    ]
    assert {event.actor for event in events} == {"tester"}


LAST_EVENT = " event ORDER BY seq DESC LIMIT 1"


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM event WHERE seq = 1",
        "UPDATE event SET actor = 'nobody' WHERE seq = 1",
        "INSERT INTO event SELECT seq + 9, at, actor, kind, subject, task, payload, hash, 'x' FROM"
        + LAST_EVENT,
        "INSERT INTO event SELECT seq + 1, at, actor, kind, subject, task, payload, 'x', 'x' FROM"
        + LAST_EVENT,
    ],
)
def test_the_database_itself_keeps_events_final(store: Store, db: Path, statement: str) -> None:
    load(store, graph("a"))
    conn = sqlite3.connect(db)
    with pytest.raises(sqlite3.IntegrityError, match="event"):
        conn.execute(statement)
    conn.close()


def test_a_hand_edit_is_found_by_the_doctor(store: Store, db: Path) -> None:
    load(store, graph("a; b: a"))
    assert examine(db) == []
    conn = sqlite3.connect(db, isolation_level=None)
    conn.execute("UPDATE task SET state = 'done' WHERE id = 'a'")
    assert "a" in examine(db)[0]
    assert "altered by hand" in examine(db)[0]
    conn.execute("UPDATE task SET state = 'ready' WHERE id = 'a'")
    conn.execute("DROP TRIGGER event_is_final")
    conn.execute("UPDATE event SET actor = 'nobody' WHERE seq = 3")
    assert "the first is number 3" in examine(db)[0]
    conn.close()


def test_the_doctor_reads_beside_what_a_killed_writer_left(
    store: Store, db: Path, tmp_path: Path
) -> None:
    """A copy that was just taken over is killed while it is set to the write-ahead log."""
    load(store, graph("a; b: a"))
    taken, killed = tmp_path / "taken.db", tmp_path / "killed.db"
    copy_database(db, taken)
    writer = sqlite3.connect(taken, isolation_level=None)
    writer.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the commit
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE task SET reason = hex(randomblob(20000))")
    for end in ("", "-journal"):
        shutil.copy(f"{taken}{end}", f"{killed}{end}")
    writer.execute("ROLLBACK")
    writer.close()
    assert killed.read_bytes() != taken.read_bytes(), "the kill was too early to leave anything"
    assert examine(killed) == []


def test_another_connection_is_noticed_by_data_version(store: Store, db: Path) -> None:
    before = store.data_version()
    with store.write() as tx:
        tx.add_note("mine")
    assert store.data_version() == before
    with open_store(db, actor="other") as other, other.write() as tx:
        tx.add_note("theirs")
    assert store.data_version() != before


def test_each_thread_has_its_own_connection_and_dead_ones_are_dropped(store: Store) -> None:
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            with store.write() as tx:
                tx.add_note(f"note {number}")
            store.snapshot()
        except (StateError, sqlite3.Error) as error:
            failures.append(error)

    for batch in range(3):
        threads = [threading.Thread(target=work, args=[batch * 8 + n]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(store.snapshot().notes) == 24
    assert len(store._connections) <= 10


def test_a_closed_store_says_so(db: Path) -> None:
    store = open_store(db, actor="x")
    store.close()
    with pytest.raises(StateError, match="was closed"):
        store.snapshot()


def test_a_write_inside_a_write_is_told(store: Store) -> None:
    with (
        pytest.raises(StateError, match="inside another write"),
        store.write(),
        store.write(),
    ):
        pass


def test_reading_takes_ten_times_as_long_for_ten_times_the_tasks(
    store: Store, tmp_path: Path
) -> None:
    def seconds(of: Store, count: int) -> float:
        load(of, graph("; ".join(f"t{n}: {f't{n - 1}' if n else ''}" for n in range(count))))
        times = []
        for _ in range(5):
            start = time.process_time()
            assert len(of.snapshot().tasks) == count
            times.append(time.process_time() - start)
        return min(times)

    small = seconds(store, 200)
    with open_store(tmp_path / "larger" / "state.db", actor="tester", clock=Clock()) as larger:
        assert seconds(larger, 2000) < 30 * small
