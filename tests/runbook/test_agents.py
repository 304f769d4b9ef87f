"""What an actor named `agent:...` may do by itself, with a person's token, and not at all."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from runbook.errors import Exit
from runbook.requests import open_requests
from runbook.service import Service
from runbook.verbs.confirming import NeedsConfirmation
from state import HostBinding, TaskState
from tests.support.workspaces import cli, make, states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TASKS = """\
  quick: {title: Quick, phase: one, step: shell, with: {sh: "true"}}
  long: {title: Long, phase: one, step: shell, with: {sh: sleep 300}}
  asks: {title: Asks, phase: one, gate: {ask: "Good?"}, step: shell, with: {sh: "true"}}
  bad: {title: Bad, phase: one, step: shell, with: {sh: exit 3}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with make(tmp_path, TASKS) as service:
        service.approve_runbook()
    return tmp_path


def agent(folder: Path) -> Service:
    return Service.open(folder, actor="agent:x")


def test_an_agent_runs_retries_and_notes_by_itself(folder: Path) -> None:
    with agent(folder) as service:
        service.run(only=["quick", "bad"])
        service.retry("bad", reason="the disk is empty now")
        service.note("the disk was full", task="bad")
        assert states(service) == {
            "quick": "done",
            "long": "ready",
            "asks": "ready",
            "bad": "ready",
        }


def test_a_runbook_that_no_person_saw_is_not_run(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    refused = cli(tmp_path, "run", RUNBOOK_ACTOR="agent:x")
    assert refused.returncode == Exit.NEEDS_APPROVAL
    assert "confirm --runbook" in refused.stderr
    assert cli(tmp_path, "watch", RUNBOOK_ACTOR="agent:x").returncode == Exit.NEEDS_APPROVAL
    looked = cli(tmp_path, "run", "--dry-run", RUNBOOK_ACTOR="agent:x")
    assert looked.returncode == 0, looked.stderr


def test_what_cannot_be_undone_takes_a_persons_token_at_the_command_line_too(folder: Path) -> None:
    words = ["gate", "approve", "asks", "--reason", "looks good"]
    with agent(folder) as service:
        service.run(only=["asks"])
    refused = cli(folder, *words, RUNBOOK_ACTOR="agent:x")
    assert refused.returncode == Exit.NEEDS_APPROVAL
    with Service.open(folder, actor="anna") as service:
        (request,) = open_requests(service.snapshot())
        assert f"runbook -w {folder} confirm {request.id}" in refused.stderr
        token, revision = service.confirm(request.id), service.store.revision()
    moved = [*words, "--token", token, "--expect-rev", "3"]
    assert cli(folder, *moved, RUNBOOK_ACTOR="agent:x").returncode == Exit.CONFLICT
    fresh = [*words, "--token", token, "--expect-rev", str(revision)]
    done = cli(folder, *fresh, RUNBOOK_ACTOR="agent:x")
    assert done.returncode == 0, done.stderr
    with agent(folder) as service:
        assert states(service)["asks"] == "ready"


def test_what_a_person_stopped_is_not_started_again_by_an_agent(folder: Path) -> None:
    with Service.open(folder, actor="anna") as service:
        left = threading.Event()
        service.run(only=["long"], stop_event=left, listen=lambda _: left.set())
        with agent(folder) as other, pytest.raises(NeedsConfirmation):
            other.stop("long")
        service.stop("long")
        assert open_requests(service.snapshot()) == [], "it is stopped: nothing is to confirm"
    with agent(folder) as service, pytest.raises(NeedsConfirmation, match="retry long"):
        service.retry("long")


def test_a_yes_to_one_task_is_none_to_all_that_needs_it(tmp_path: Path) -> None:
    tasks = """\
  one: {title: One, phase: one, step: shell, with: {sh: "true"}}
  two: {title: Two, phase: one, needs: [one], step: shell, with: {sh: "true"}}
"""
    with make(tmp_path, tasks) as service:
        service.approve_runbook()
        service.run()
    with agent(tmp_path) as service:
        for below in (False, True):
            with pytest.raises(NeedsConfirmation):
                service.retry("one", reason="other numbers", below=below)
        asked = {row.verb: row for row in open_requests(service.snapshot())}
        assert set(asked) == {"retry", "retry --below"}
        assert {row.reason for row in asked.values()} == {"other numbers"}
    with Service.open(tmp_path, actor="anna") as service:
        few = service.confirm(asked["retry"].id)
        all_ = service.confirm(asked["retry --below"].id)
    words = ["retry", "one", "--below", "--reason", "other numbers", "--token"]
    refused = cli(tmp_path, *words, few, RUNBOOK_ACTOR="agent:x")
    assert "is for `retry one`, not for this" in refused.stderr
    done = cli(tmp_path, *words, all_, RUNBOOK_ACTOR="agent:x")
    assert done.returncode == 0, done.stderr
    with agent(tmp_path) as service:
        assert states(service) == {"one": "ready", "two": "blocked"}


def test_a_request_ends_when_its_task_is_where_the_verb_does_not_apply(folder: Path) -> None:
    with agent(folder) as service:
        for verb in ("skip", "stop"):
            service.ask(verb, "quick", "")
        assert [row.verb for row in open_requests(service.snapshot())] == ["skip"]
        service.run(only=["quick"])
        assert open_requests(service.snapshot()) == []


def test_what_an_edit_made_stale_is_a_persons_to_run_again(folder: Path) -> None:
    with Service.open(folder, actor="anna") as service:
        service.run(only=["quick"])
    edited = TASKS.replace('{sh: "true"}}\n  long', "{sh: echo}}\n  long")
    with make(folder, edited) as service:
        assert service.snapshot().task("quick").state is TaskState.STALE
    with agent(folder) as service:
        with pytest.raises(NeedsConfirmation):
            service.retry("quick")
        with pytest.raises(NeedsConfirmation):
            service.redo()
        with pytest.raises(NeedsConfirmation, match="approved"):
            service.run()


@pytest.mark.parametrize(
    "act",
    [
        lambda s: s.bind("box", HostBinding(role="box", kind="local")),
        lambda s: s.repin("box", "ssh-ed25519 AAAA"),
        lambda s: s.forget("box"),
        lambda s: s.rent("box", usd_per_hour=1.0),
        lambda s: s.claim("long", take_over=True, reason="mine"),
    ],
    ids=["bind", "repin", "forget", "rent", "take over"],
)
def test_machines_and_other_peoples_claims_are_no_agents_business(
    folder: Path, act: Callable[[Service], object]
) -> None:
    with agent(folder) as service:
        revision = service.store.revision()
        with pytest.raises(NeedsConfirmation) as refused:
            act(service)
        assert refused.value.request == ""
        assert service.store.revision() == revision


def test_the_brief_says_which_next_action_is_a_persons(folder: Path) -> None:
    with agent(folder) as service:
        service.run(only=["asks"])
        service.run(only=["bad"])
        assert service.view().next.command == "runbook retry bad"
        assert not service.view().next.person
        service.retry("bad", reason="again")
        service.run(only=["bad"])
        twice = service.view().next
    assert (twice.command, twice.person) == ("runbook retry bad", True)
    assert "failed 2 times as it is defined" in twice.reason
    brief = cli(folder, "brief").stdout
    assert "**a person decides this**" in brief
