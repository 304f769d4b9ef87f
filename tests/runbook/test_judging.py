"""A task that failed by a check alone is judged again, and its work is not done again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remote import Host, Unreachable
from runbook.costs import Estimate, Estimates
from runbook.engine.hosts import Hosts
from runbook.errors import RunbookError
from runbook.forecast import forecasts, seconds_it_ran
from runbook.plan import load_text
from runbook.service import Service
from runbook.verbs.confirming import NeedsConfirmation
from tests.support.workspaces import HEAD, cli, make, states

if TYPE_CHECKING:
    from pathlib import Path

    from state import Snapshot

TASKS = """\
  train:
    title: Train
    phase: one
    step: shell
    retry: {max: 2, on: [exit]}
    with:
      sh: |
        mkdir -p ${host.work}; cd ${host.work}
        echo x >> runs; echo '{"loss": 0.5}' > m.json; echo '{"rows": 500}' > $RUNBOOK_OUT
    done_when:
      - json_metric: {path: "${host.work}/m.json", key: loss, max: 0.4}
  after:
    title: After
    phase: one
    needs: [train]
    step: shell
    with: {sh: "true"}
    estimate: {like: train, of: rows, amount: 1500}
"""
LOOSE = TASKS.replace("max: 0.4", "max: 0.6")


def edit(folder: Path, tasks: str, *, actor: str = "tester") -> Service:
    runbook = load_text(HEAD + tasks, path=str(folder / "runbook.yaml"), params={})
    return Service.create(folder, runbook, actor=actor)


def runs(folder: Path) -> int:
    return len((folder / "work" / "runs").read_text().split())


@pytest.fixture
def failed(tmp_path: Path) -> Path:
    told: list[str] = []
    with make(tmp_path, TASKS) as service:
        service.run(listen=lambda event: told.append(getattr(event, "text", "")))
        assert states(service)["train"] == "failed"
        step = service.view().next
        assert (step.verb, step.task) == ("status", "train"), "a retry would fail the same way"
        assert "not retried: a failed check never is" in step.reason
    assert "train: not retried: a failed check never is" in told
    return tmp_path


def test_a_changed_check_is_asked_of_the_work_that_was_done(failed: Path) -> None:
    edit(failed, TASKS.replace("max: 2", "max: 3")).close()  # says nothing of the work
    with edit(failed, LOOSE) as service:
        assert service.view().next.command == "runbook verify train"
        said = cli(failed, "verify", "train", RUNBOOK_ACTOR="ann")
        assert said.returncode == 0, said.stderr
        assert "train is done: verified again by ann" in said.stdout
        task, attempt = service.snapshot().task("train"), service.snapshot().latest_attempt("train")
        assert attempt is not None
        assert task.state.value == "done"
        assert task.definition_hash[:12] in task.reason
        (check,) = service.snapshot().checks_of("train")
        assert (check.verdict, check.evidence["value"]) == ("pass", 0.5)
        assert check.attempt == attempt.id
        # By it, others are estimated as if it had gone well at once.
        ran = seconds_it_ran(attempt)
        (found,) = forecasts(service.snapshot())
        assert (found.task, found.hours * 3600) == ("after", pytest.approx(3 * ran))
        estimates = Estimates(service.snapshot())
        assert estimates.of(task) == Estimate(seconds=ran, source="measured")
        service.run()
        assert states(service) == {"train": "done", "after": "done"}
        service.verify()  # by what it was judged by last, not by what it failed
        assert states(service)["train"] == "done"
    assert runs(failed) == 1, "the work was not done again"


def test_a_check_that_still_fails_leaves_it_failed(failed: Path) -> None:
    with Service.open(failed, dry_run=True) as service:
        service.verify(["train"])
        assert service.would == ["check on box: train: json_metric loss ${host.work}/m.json"]
    said = cli(failed, "verify", "train")
    assert said.returncode == 4
    with Service.open(failed) as service:
        assert states(service)["train"] == "failed"
        (failed / "work" / "m.json").write_text('{"loss": 0.3}')  # what it looks at was mended
        service.verify(["train"])
        assert states(service)["train"] == "done"
    assert runs(failed) == 1


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("echo x >> runs", "echo xx >> runs", "what it runs"),
        ("phase: one", "phase: one\n    timeout: 1h", "timeout"),
        ("      sh: |", "      cwd: /tmp\n      sh: |", "what it runs"),
    ],
)
def test_other_work_is_not_judged_by_what_the_old_one_made(
    failed: Path, before: str, after: str, why: str
) -> None:
    with edit(failed, LOOSE.replace(before, after, 1)) as service:
        with pytest.raises(RunbookError, match=why) as refused:
            service.verify(["train"])
        assert "runbook retry train" in refused.value.hint
        assert states(service)["train"] == "failed"


def test_an_agent_does_not_loosen_a_check_and_pass_by_it(failed: Path) -> None:
    with edit(failed, LOOSE) as service:
        service.approve_runbook()
    with Service.open(failed, actor="agent:one") as agent:
        with pytest.raises(NeedsConfirmation) as asked:
            agent.verify(["train"])
        assert states(agent)["train"] == "failed"
        with Service.open(failed, actor="tester") as person:
            token = person.confirm(asked.value.request)
        agent.redeem(token, "verify", "train")
        agent.verify(["train"])
        assert states(agent)["train"] == "done"


def test_what_failed_otherwise_has_nothing_to_judge(tmp_path: Path) -> None:
    with make(tmp_path, TASKS.replace("mkdir -p", "exit 3; mkdir -p")) as service:
        service.run()
        with pytest.raises(RunbookError, match="did not fail by its checks"):
            service.verify(["train"])


FAMILY = """\
  part:
    for_each: {i: 4}
    title: Part ${each.i}
    phase: one
    step: shell
    with:
      sh: |
        mkdir -p ${host.work}; cd ${host.work}; echo x >> runs
        test ${each.i} != 1 || exit 3
        echo "{\\"loss\\": 0.$((5 - ${each.i}))}" > m${each.i}.json
    done_when:
      - json_metric: {path: "${host.work}/m${each.i}.json", key: loss, max: 0.4}
  other:
    title: Other
    phase: one
    needs: [part]
    step: shell
    with: {sh: "true"}
"""


def test_a_family_is_judged_as_its_members_are_and_what_was_not_is_told(tmp_path: Path) -> None:
    with make(tmp_path, FAMILY) as service:
        service.run()
        assert list(states(service).values()) == ["failed", "failed", "done", "done", "blocked"]
        (tmp_path / "work" / "m3.json").unlink()
        (tmp_path / "work" / "m0.json").write_text('{"loss": 0.3}')
        said = cli(tmp_path, "verify", "part", "--dry-run").stdout
        assert "would not judge part[1]: `part[1]` did not fail by its checks" in said
        done = cli(tmp_path, "verify", "part", "other")
        assert done.returncode == 4
        for words in (
            "part[1]: not judged: `part[1]` did not fail by its checks (ended with exit code 3)",
            "other: not judged: it is blocked (waits for part[1] (failed), part[3] (stale))",
            "Checks of 3 tasks: 3; not held: 1.",
            "part[0] is done: verified again by ",
        ):
            assert words in done.stdout
        assert done.stdout.count("other") == 1, "what was passed over is told once"
        assert states(service)["part[0]"] == "done"
        assert states(service)["part[3]"] == "stale"
        assert cli(tmp_path, "verify", "part", "--redo").returncode == 4, "one has still failed"
        assert states(service)["part[3]"] == "ready"


def test_a_silent_host_keeps_no_other_from_being_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = "".join(
        f"  {role}: {{title: X, phase: one, host: {role}, step: shell, with: {{sh: 'true'}}}}\n"
        for role in ("away", "box")
    )
    with make(tmp_path, tasks, head=HEAD.replace("{box:", "{away: {}, box:")) as service:
        service.bind("away", replace(service.snapshot().host("box"), role="away"))
        service.run()
        of_role = Hosts.of_role

        def reached(self: Hosts, snapshot: Snapshot, role: str) -> Host:
            if role == "away":
                raise Unreachable("away: no answer")
            return of_role(self, snapshot, role)

        monkeypatch.setattr(Hosts, "of_role", reached)
        found = service.verify()
        assert (list(found.tasks), found.unanswered) == (["box"], {"away": "away: no answer"})
        with pytest.raises(Unreachable):
            service.verify(["away"])
