"""A task that another copy of the state ran: said with the cure, before the histories part."""

from __future__ import annotations

import shutil
from threading import Event
from typing import TYPE_CHECKING

import pytest

from runbook.engine.elsewhere import RunElsewhere
from runbook.errors import Exit, RunbookError
from runbook.service import Service
from runbook.sharing.place import Place
from runbook.verbs.confirming import NeedsConfirmation
from state import HostBinding
from tests.support.shared import take
from tests.support.workspaces import HEAD, cli, make, states

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  once:
    title: Leaves a trace of each start
    phase: one
    step: shell
    with: {sh: "mkdir -p ${host.work}; echo x >> ${host.work}/starts"}
"""


@pytest.fixture
def ran_by_bob(tmp_path: Path) -> Path:
    """Bob pulled Ann's state and ran its task; Ann knows nothing of it."""
    place = Place(url=str(tmp_path / "state.runbook"))
    with make(tmp_path / "ann", TASKS) as ann:
        ann.push(place)
    take(place, tmp_path / "bob")
    with Service.open(tmp_path / "bob", actor="bob@far") as bob:
        bob.run()
        assert states(bob) == {"once": "done"}
        bob.push(place)
    return tmp_path


def starts(folder: Path) -> int:
    return (folder / "ann" / "work" / "starts").read_text().count("x")


def test_the_stale_one_is_told_and_can_pull(ran_by_bob: Path) -> None:
    with Service.open(ran_by_bob / "ann") as ann:
        before = ann.store.revision()
        with pytest.raises(RunElsewhere) as refused:
            ann.run()
        assert "`once` was run by another workspace (bob@far): attempt " in str(refused.value)
        assert " ended ok at " in str(refused.value)
        assert ann.reconcile() == ()
        assert ann.store.revision() == before, "nothing that would keep a pull from working"
    said = cli(ran_by_bob / "ann", "run")
    assert said.returncode == Exit.CONFLICT
    assert "takes over what it came to" in said.stderr
    take(Place(url=str(ran_by_bob / "state.runbook")), ran_by_bob / "ann")
    with Service.open(ran_by_bob / "ann") as ann:
        assert states(ann) == {"once": "done"}
    assert cli(ran_by_bob / "ann", "logs", "once").returncode == 0
    assert starts(ran_by_bob) == 1


def test_a_second_time_is_a_decision_that_names_the_first(ran_by_bob: Path) -> None:
    with Service.open(ran_by_bob / "ann", dry_run=True) as ann:
        ann.supersede("once", reason="his copy is lost")
        assert any("whether another workspace ran once" in text for text in ann.would)
    with Service.open(ran_by_bob / "ann") as ann:
        ann.supersede("once", reason="his copy is lost")
        (note,) = ann.snapshot().notes
        assert "ended ok" in note.text
        assert "his copy is lost" in note.text
        ann.run()
        assert states(ann) == {"once": "done"}
        with pytest.raises(RunbookError, match="it is done"):
            ann.supersede("once", reason="again")
    assert starts(ran_by_bob) == 2


def test_what_runs_is_not_followed_by_a_state_that_another_copy_left_behind(tmp_path: Path) -> None:
    tasks = """\
  slow:
    title: Runs when the state is handed over
    phase: one
    step: shell
    with: {sh: "until test -e ${host.work}/go; do sleep 0.1; done"}
"""
    place = Place(url=str(tmp_path / "state.runbook"))
    with make(tmp_path / "ann", tasks + TASKS + "    needs: [slow]\n") as ann:
        left = Event()
        ann.run(stop_event=left, listen=lambda _: left.set())
        assert states(ann) == {"slow": "active", "once": "blocked"}
        ann.push(place)
        known = ann.store.revision()
    take(place, tmp_path / "bob")
    (tmp_path / "ann" / "work" / "go").touch()
    with Service.open(tmp_path / "bob", actor="bob@far") as bob:
        bob.run()
        assert states(bob) == {"slow": "done", "once": "done"}
        bob.push(place)
    with Service.open(tmp_path / "ann") as ann, pytest.raises(RunElsewhere, match="`once` was run"):
        ann.run()
    shutil.copytree(tmp_path / "ann", tmp_path / "copy")
    take(place, tmp_path / "copy")
    with Service.open(tmp_path / "copy") as ann:
        assert states(ann) == {"slow": "done", "once": "done"}
    with Service.open(tmp_path / "ann") as ann:
        assert ann.store.revision() == known, "nothing that would keep a pull from working"
        ann.supersede("once", reason="his copy is lost")
        assert ann.run().outcome == "done"
    assert starts(tmp_path) == 2


def test_an_agent_asks_for_it_and_a_person_says_yes(ran_by_bob: Path) -> None:
    with Service.open(ran_by_bob / "ann", actor="agent:x") as agent:
        with pytest.raises(NeedsConfirmation) as asked:
            agent.supersede("once", reason="his copy is lost")
        with Service.open(ran_by_bob / "ann") as ann:
            token = ann.confirm(asked.value.request)
        agent.redeem(token, "supersede", "once")
        agent.supersede("once", reason="his copy is lost")
        assert states(agent) == {"once": "ready"}


def test_a_silent_machine_hides_no_other(tmp_path: Path) -> None:
    """What another copy started is found although the first machine that is asked is dead."""
    roles = HEAD.replace(
        "hosts: {box: {title: here}}", "hosts: {box: {title: a}, dead: {title: b}}"
    )
    first = TASKS.replace("once:", "first:").replace("phase: one", "phase: one\n    host: dead")
    place = Place(url=str(tmp_path / "state.runbook"))
    with make(tmp_path / "ann", first + TASKS, head=roles) as ann:
        with ann.store.write() as tx:
            tx.bind_host(HostBinding(role="dead", kind="ssh", address="127.0.0.1", port=1))
        ann.push(place)
    take(place, tmp_path / "bob")
    with Service.open(tmp_path / "bob", actor="bob@far") as bob:
        bob.run(only=["once"])
        assert states(bob)["once"] == "done"
    with Service.open(tmp_path / "ann") as ann:
        before, leave = ann.store.revision(), Event()
        leave.set()
        with pytest.raises(RunElsewhere):
            ann.run(stop_event=leave)
        assert ann.store.revision() == before
