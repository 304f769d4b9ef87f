"""Claims: for a while, by one's own watching, and others are told whose it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from runbook.claims import Watched, live_claims
from runbook.errors import Exit, RunbookError
from runbook.service import Service
from state import Claim, ClaimHeld
from state.doctor import examine
from tests.support.workspaces import cli, make, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TASKS = """\
  bad:
    title: Bad
    phase: one
    step: shell
    with: {sh: "exit 1"}
  good:
    title: Good
    phase: one
    step: shell
    with: {sh: "true"}
  after:
    title: After
    phase: one
    needs: [good]
    gate: {ask: "Go on?"}
    step: shell
    with: {sh: "true"}
"""


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[Service]:
    make(tmp_path, TASKS).close()
    with Service.open(tmp_path, actor="ann") as service:
        yield service


@pytest.fixture
def bob(ann: Service) -> Iterator[Service]:
    with Service.open(ann.workspace.root, actor="bob") as service:
        yield service


def test_the_same_actor_claims_again_and_the_token_grows(ann: Service) -> None:
    first = ann.claim("bad", for_s=60, reason="looking")
    second = ann.claim("bad", for_s=120)
    assert (second.token, second.for_s) == (first.token + 1, 120)
    assert ann.release("bad")
    assert not ann.release("bad")
    assert ann.claim("bad").token == second.token + 1
    assert examine(ann.workspace.database) == []


VERBS: list[Callable[[Service], object]] = [
    lambda service: service.retry("bad"),
    lambda service: service.retry_failed(),
    lambda service: service.skip("bad", "no"),
    lambda service: service.claim("bad"),
    lambda service: service.release("bad"),
]


def test_others_are_refused_with_the_holders_name(ann: Service, bob: Service) -> None:
    ann.run(only=["bad"])
    ann.claim("bad", reason="reading its log")
    before = ann.snapshot()
    said = r"claimed by ann since .* \(reading its log\)"
    for verb in VERBS:
        with pytest.raises(ClaimHeld, match=said) as refused:
            verb(bob)
        assert "--take-over" in refused.value.hint
    assert ann.snapshot() == before
    assert bob.note("said").actor == "bob"  # words are always welcome
    ann.release("bad")
    bob.retry("bad")


def test_a_claim_on_the_run_stops_others_engines(ann: Service, bob: Service) -> None:
    ann.claim("run")
    for verb in (bob.run, bob.watch, lambda: bob.approve("after", "yes")):
        with pytest.raises((ClaimHeld, RunbookError)):
            verb()
    with pytest.raises(ClaimHeld, match="The whole run is claimed by ann"):
        bob.run()
    assert ann.run().outcome in ("failed", "gate")


def test_an_engine_leaves_what_others_claimed(ann: Service, bob: Service) -> None:
    ann.claim("good")
    said: list[str] = []
    bob.run(listen=lambda event: said.append(str(event)))
    assert states(bob)["good"] == "ready"
    assert states(bob)["bad"] == "failed"
    assert any("claimed by ann" in text for text in said)
    ann.run(only=["good"])
    assert states(bob)["good"] == "done"


def test_an_engine_takes_up_what_is_released_while_it_runs(tmp_path: Path) -> None:
    """Ann lets go once bob's engine has left her task alone; his last task waits for that."""
    tasks = """\
  hers:
    title: Hers
    phase: one
    step: shell
    with: {sh: "true"}
  long:
    title: Long
    phase: one
    step: shell
    with: {sh: "until test -e ${host.work}/released; do sleep 0.02; done"}
"""
    make(tmp_path, tasks).close()
    with Service.open(tmp_path, actor="ann") as ann, Service.open(tmp_path, actor="bob") as bob:
        ann.claim("hers")

        def listen(event: object) -> None:
            if "claimed by ann" in str(event):
                ann.release("hers")
                (tmp_path / "work").mkdir(exist_ok=True)
                (tmp_path / "work" / "released").touch()

        assert bob.run(listen=listen).outcome == "done"
        assert states(bob) == {"hers": "done", "long": "done"}


def test_taking_over_needs_a_reason_and_is_an_event(ann: Service, bob: Service) -> None:
    ann.claim("bad")
    with pytest.raises(RunbookError, match="needs a reason"):
        bob.claim("bad", take_over=True)
    assert bob.claim("bad", take_over=True, reason="ann is on holiday").holder == "bob"
    event = bob.events(task="bad")[-1]
    assert event.payload["taken_over_from"] == "ann"
    with pytest.raises(ClaimHeld):
        ann.release("bad")


def test_an_unknown_task_is_not_claimed(ann: Service) -> None:
    from state import UnknownTask

    with pytest.raises(UnknownTask, match="baad"):
        ann.claim("baad")


def test_a_claim_that_has_run_out_is_replaced(ann: Service, bob: Service) -> None:
    claim = ann.claim("bad", for_s=60)
    path = ann.workspace.private / "claims.json"
    marks = json.loads(path.read_text())
    marks["bad"]["since"] -= 61
    path.write_text(json.dumps(marks))
    assert live_claims(bob.workspace, bob.snapshot()) == {}
    assert bob.claim("bad").token == claim.token + 1


def held(token: int, *, for_s: float = 100) -> list[Claim]:
    """Made by a machine whose clock is years off: nobody looks at it."""
    return [Claim(subject="a", holder="x", token=token, at="1999", for_s=for_s, reason="")]


def test_running_out_is_judged_by_ones_own_uptime(tmp_path: Path) -> None:
    now = [1000.0]
    boot = ["one"]
    watched = Watched(tmp_path / "claims.json", now=lambda: now[0], boot=lambda: boot[0])
    assert watched.left_s(held(1)) == {"a": 100}
    now[0] += 99
    assert watched.left_s(held(1)) == {"a": 1}
    now[0] += 2
    assert watched.left_s(held(1))["a"] < 0
    assert watched.left_s(held(2)) == {"a": 100}  # claimed anew
    now[0], boot[0] = 5.0, "two"
    assert watched.left_s(held(2)) == {"a": 100}  # never shorter than was said
    (tmp_path / "claims.json").write_text("torn{")
    assert watched.left_s(held(2)) == {"a": 100}


def test_claims_are_shown(ann: Service, bob: Service) -> None:
    ann.claim("good", for_s=1800, reason="mine")
    folder = ann.workspace.root
    status = json.loads(cli(folder, "status", "--json").stdout)["data"]
    assert [(c["subject"], c["holder"]) for c in status["claims"]] == [("good", "ann")]
    assert 1700 < status["claims"][0]["left_s"] <= 1800
    assert "claimed by ann" in cli(folder, "status").stdout
    assert "claimed by ann" in cli(folder, "next").stdout
    assert "`good` by ann since" in bob.brief()
    assert "`good` by ann since" in ann.workspace.progress_file.read_text()
    refused = cli(folder, "retry", "good", RUNBOOK_ACTOR="bob")
    assert refused.returncode == 2  # it is not failed: that is said first
    refused = cli(folder, "claim", "good", RUNBOOK_ACTOR="bob")
    assert refused.returncode == 6
    assert "ann" in refused.stderr


def test_when_only_claimed_work_is_left_it_is_a_conflict_and_named(
    ann: Service, bob: Service
) -> None:
    bob.skip("bad", "not wanted")
    ann.run()
    ann.approve("after", "yes")
    ann.claim("after", reason="on it")
    result = bob.run()
    assert result.outcome == "held"
    assert "claimed by ann" in result.reason
    step = bob.view().next
    assert step.command == "runbook status after", "nothing that would be refused"
    for said in ("claimed by ann", "`runbook release after`", "--take-over"):
        assert said in step.reason
    assert f"`{step.command}` ({step.reason})" in bob.brief()
    assert ann.view().next.command == "runbook run", "her own claim is in nobody's way"
    ended = cli(bob.workspace.root, "run", RUNBOOK_ACTOR="bob")
    assert ended.returncode == Exit.CONFLICT, ended.stdout
    ann.claim("run")
    assert bob.view().next.reason.startswith("the whole run is claimed by ann")
    ann.release("run")
    ann.release("after")
    assert bob.view().next.command == "runbook run"


def test_what_others_claimed_keeps_nobody_from_the_rest(ann: Service, bob: Service) -> None:
    ann.claim("bad")
    step = bob.view().next
    assert (step.command, step.reason) == ("runbook run", "ready: good")
