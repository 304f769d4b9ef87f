"""push and pull: what lies there is our past or it is not overwritten, and the other way round."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from runbook.errors import Exit, RunbookError
from runbook.service import Service
from runbook.sharing.place import Place
from runbook.sharing.pull import Offer, pull
from state.doctor import examine
from state.snapshot_file import SnapshotDamaged
from tests.support.shared import TASKS, take
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[Service]:
    with make(tmp_path / "ann", TASKS) as service:
        yield service


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(url=str(tmp_path / "state.runbook"))


def bob_of(tmp_path: Path) -> Service:
    return Service.open(tmp_path / "bob", actor="bob")


def test_a_fresh_machine_goes_on(ann: Service, place: Place, tmp_path: Path) -> None:
    ann.run(only=["one"])
    ann.note("the box is slow in the morning", decision=True)
    pushed = ann.push(place)
    assert (pushed.written, pushed.replaced) == (True, None)
    pulled = take(place, tmp_path / "bob")
    assert (pulled.change, pulled.kept) == ("made", ())
    with bob_of(tmp_path) as bob:
        assert bob.snapshot() == ann.snapshot()
        assert bob.progress_is_current()
        assert examine(bob.workspace.database) == []
        assert bob.run().outcome == "done"
        assert [note.text for note in bob.snapshot().notes] == ["the box is slow in the morning"]
        bob.push(place)
    starts = (tmp_path / "ann" / "work" / "starts").read_text().split()
    assert starts == ["one", "two"]
    take(place, tmp_path / "ann", actor="tester")
    assert set(states(ann).values()) == {"done"}
    assert ann.progress_is_current()


def test_running_jobs_are_adopted(place: Place, tmp_path: Path) -> None:
    import threading

    with make(tmp_path / "ann", TASKS.replace('"echo one', '"sleep 1.5; echo one')) as ann:
        left = threading.Event()
        ann.run(
            stop_event=left,
            listen=lambda event: left.set() if getattr(event, "state", "") == "active" else None,
        )
        before = ann.snapshot().attempts_of("one")
        assert before
        ann.push(place)
    take(place, tmp_path / "bob")
    with bob_of(tmp_path) as bob:
        assert bob.run().outcome == "done"
        assert [a.id for a in bob.snapshot().attempts_of("one")] == [a.id for a in before]
    starts = (tmp_path / "ann" / "work" / "starts").read_text().split()
    assert starts == ["one", "two"]


def test_a_stale_writer_is_told_what_is_newer(ann: Service, place: Place, tmp_path: Path) -> None:
    ann.push(place)
    take(place, tmp_path / "bob")
    with bob_of(tmp_path) as bob:
        bob.note("news")
        bob.push(place)
        newer = bob.store.revision()
    with pytest.raises(RunbookError) as refused:
        ann.push(place)
    assert refused.value.exit_code is Exit.CONFLICT
    assert re.search(rf"newer state: revision {newer} by bob, \d+ s ago", refused.value.message)
    assert "runbook pull" in refused.value.hint


def test_a_push_again_writes_nothing(ann: Service, place: Place, tmp_path: Path) -> None:
    ann.push(place)
    before = (tmp_path / "state.runbook").stat().st_mtime_ns
    assert not ann.push(place).written
    assert (tmp_path / "state.runbook").stat().st_mtime_ns == before


def test_diverged_states_are_both_named_and_none_is_lost(
    ann: Service, place: Place, tmp_path: Path
) -> None:
    ann.push(place)
    common = ann.store.revision()
    take(place, tmp_path / "bob")
    with bob_of(tmp_path) as bob:
        bob.note("bob's")
        bob.push(place)
        theirs = bob.snapshot()
    ann.note("ann's")
    ours = ann.snapshot()
    for verb in (lambda: ann.push(place), lambda: take(place, ann.workspace.root)):
        with pytest.raises(RunbookError) as refused:
            verb()
        said = refused.value.message
        assert refused.value.exit_code is Exit.CONFLICT
        assert f"after revision {common}" in said
        assert f"revision {theirs.revision} by bob" in said
        assert f"here is revision {ours.revision}" in said
    assert ann.snapshot() == ours
    with pytest.raises(RunbookError, match="went apart"):
        ann.push(place, over=theirs.revision - 1)  # another one than the one that lies there
    pushed = ann.push(place, over=theirs.revision)
    take(Place(url=pushed.kept), tmp_path / "kept")
    with Service.open(tmp_path / "kept") as kept:
        assert kept.snapshot() == theirs
    take(place, tmp_path / "third")
    with Service.open(tmp_path / "third") as third:
        assert third.snapshot() == ours


def test_dry_runs_change_nothing(ann: Service, place: Place, tmp_path: Path) -> None:
    revision = ann.store.revision()
    assert not ann.push(place, dry_run=True).written
    assert not (tmp_path / "state.runbook").exists()
    ann.push(place)
    said = pull(place, tmp_path / "bob", actor="bob", agree=lambda _: True, dry_run=True)
    assert said.change == "made"
    assert not (tmp_path / "bob").exists()
    assert ann.store.revision() == revision


def test_commands_and_keys_are_shown_before_they_are_used(
    ann: Service, place: Place, tmp_path: Path
) -> None:
    from dataclasses import replace

    ann.push(place)
    offers: list[Offer] = []

    def no(offer: Offer) -> bool:
        offers.append(offer)
        return False

    with pytest.raises(RunbookError) as refused:
        pull(place, tmp_path / "bob", actor="bob", agree=no)
    assert refused.value.exit_code is Exit.NEEDS_APPROVAL
    assert f"--trust {offers[0].contents.digest}" in refused.value.hint
    assert not (tmp_path / "bob").exists()
    shown = offers[0].contents
    assert shown.tasks["one"] == ('sh -c "echo one >> ${host.work}/starts"',)
    assert set(shown.hosts) == {"box"}

    take(place, tmp_path / "bob")
    ann.run(only=["one"])  # work that goes on is nothing new to agree to
    ann.push(place)
    assert pull(place, tmp_path / "bob", actor="bob", agree=no).change == "forwarded"
    assert len(offers) == 1
    with ann.store.write() as tx:
        key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA=="
        host = replace(ann.snapshot().host("box"), kind="ssh", address="evil", host_key=key)
        tx.bind_host(host)
    ann.push(place)
    with pytest.raises(RunbookError):
        pull(place, tmp_path / "bob", actor="bob", agree=no)
    assert list(offers[1].contents.hosts) == ["box"]
    assert "evil:22" in offers[1].contents.hosts["box"]
    assert "SHA256:" in offers[1].contents.hosts["box"]
    assert offers[1].contents.tasks == {}


def test_nothing_that_can_act_is_left_out_of_what_is_shown(tmp_path: Path) -> None:
    from runbook.sharing.contents import contents

    tasks = TASKS.replace(
        'with: {sh: "echo two', 'with: {env: {LD_PRELOAD: /tmp/evil.so}, sh: "echo two'
    )
    with make(tmp_path, tasks) as service:
        service.run(only=["one"])
        found = contents(service.snapshot())
    assert found.done == ("one",), "shown as well, and not as what comes"
    shown = found.tasks["two"]
    assert any("echo two" in line for line in shown)
    assert any("LD_PRELOAD" in line for line in shown)


def test_notes_of_both_sides_are_kept(ann: Service, place: Place, tmp_path: Path) -> None:
    ann.push(place)
    take(place, tmp_path / "bob")
    theirs, ours = tmp_path / "bob" / "PROGRESS.md", ann.workspace.progress_file
    theirs.write_text(theirs.read_text().replace("## Notes\n", "## Notes\n\nbob was here\n"))
    ours.write_text(ours.read_text() + "\nann wrote below\n")
    with bob_of(tmp_path) as bob:
        bob.push(place)
    with pytest.raises(RunbookError, match="that are not here"):
        ann.push(place)
    assert take(place, ann.workspace.root).change == "same"
    assert "bob was here" in ours.read_text()
    assert "ann wrote below" in ours.read_text()
    ann.push(place)
    take(place, tmp_path / "bob")
    assert theirs.read_text() == ours.read_text()


def test_another_workspace_is_neither_pushed_over_nor_pulled_over(
    ann: Service, place: Place, tmp_path: Path
) -> None:
    ann.push(place)
    with make(tmp_path / "other", TASKS) as other:
        before = other.snapshot()
        with pytest.raises(RunbookError, match="has another workspace"):
            other.push(place)
        with pytest.raises(RunbookError, match="is another workspace"):
            take(place, tmp_path / "other")
        assert other.snapshot() == before


def test_a_folder_with_another_runbook_file_is_left_alone(
    ann: Service, place: Place, tmp_path: Path
) -> None:
    ann.push(place)
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / "runbook.yaml").write_text("mine: true\n")
    with pytest.raises(RunbookError, match=r"another runbook\.yaml"):
        take(place, tmp_path / "bob")
    assert (tmp_path / "bob" / "runbook.yaml").read_text() == "mine: true\n"
    assert not (tmp_path / "bob" / ".runbook" / "state.db").exists()


def test_an_edited_runbook_file_is_kept(ann: Service, place: Place, tmp_path: Path) -> None:
    ann.push(place)
    take(place, tmp_path / "bob")
    mine = tmp_path / "bob" / "runbook.yaml"
    mine.write_text(mine.read_text() + "# my edit\n")
    ann.note("news")
    ann.push(place)
    pulled = take(place, tmp_path / "bob")
    assert any("runbook.yaml" in kept for kept in pulled.kept)
    assert mine.read_text().endswith("# my edit\n")


def test_a_live_engine_is_not_pulled_away_from_under(
    ann: Service, place: Place, tmp_path: Path
) -> None:
    lease = ann.store.acquire("engine", "ann's watch, which has nothing to do")
    ann.push(place)
    take(place, tmp_path / "bob")
    with bob_of(tmp_path) as bob:
        bob.note("news")
        bob.push(place)
    before = ann.snapshot()
    with pytest.raises(RunbookError, match="advances the graph right now"):
        take(place, ann.workspace.root)
    assert ann.snapshot() == before
    ann.store.release(lease)


def test_a_torn_file_is_refused_by_both(ann: Service, place: Place, tmp_path: Path) -> None:
    ann.push(place)
    file = tmp_path / "state.runbook"
    file.write_bytes(file.read_bytes()[:-100])
    ann.note("news")
    with pytest.raises(SnapshotDamaged):
        ann.push(place)
    with pytest.raises(SnapshotDamaged):
        take(place, tmp_path / "bob")
    assert not (tmp_path / "bob").exists()


def test_two_writers_at_once_one_wins(ann: Service, place: Place, tmp_path: Path) -> None:
    """The other one looked before the first one wrote, and is refused by the store itself."""
    from runbook.sharing import push as module
    from runbook.sharing.place import open_place

    ann.push(place)
    take(place, tmp_path / "bob")
    ann.note("ann's")
    with bob_of(tmp_path) as bob, pytest.MonkeyPatch.context() as patch:
        bob.note("bob's")
        store = open_place(place)
        looked = store.read()
        read_once = iter([looked])

        class Late:
            label = store.label

            def read(self) -> object:
                return next(read_once, None) or store.read()

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

        ann.push(place)
        patch.setattr(module, "open_place", lambda _place: Late())
        with pytest.raises(RunbookError, match="went apart") as refused:
            bob.push(place)
        assert refused.value.exit_code is Exit.CONFLICT
    take(place, tmp_path / "third")
    with Service.open(tmp_path / "third") as third:
        assert [note.text for note in third.snapshot().notes] == ["ann's"]


def test_a_local_host_of_another_machine_is_never_asked(
    ann: Service, place: Place, tmp_path: Path
) -> None:
    with ann.store.write() as tx:
        facts = {**ann.snapshot().host("box").facts, "hostname": "far-away"}
        tx.seen_host("box", epoch=None, facts=facts)
    ann.push(place)
    take(place, tmp_path / "bob")
    said: list[str] = []
    with bob_of(tmp_path) as bob:
        bob.run(listen=lambda event: said.append(str(event)))
        assert states(bob) == {"one": "ready", "two": "blocked"}
    assert any("far-away" in text and "host bind" in text for text in said)
