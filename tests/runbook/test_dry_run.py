"""--dry-run says what would be done, and nothing is: no event, no file, no host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from remote import Host
from runbook.cli.main import cli
from runbook.engine import hosts
from runbook.errors import RunbookError
from runbook.service import Service
from state import AttemptState, FailureClass, TaskState
from tests.support.workspaces import make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASKS = """\
  good:
    title: Good
    phase: one
    step: shell
    with: {sh: "echo made > ${host.work}/made"}
    done_when: [{file: {path: "${host.work}/made"}}]
  bad:
    title: Bad
    phase: one
    step: shell
    with: {sh: "exit 1"}
  ask:
    title: Ask
    phase: one
    needs: [good]
    gate: {ask: "Go on?"}
    step: shell
    with: {sh: "echo asked"}
  next:
    title: Next
    phase: one
    needs: [ask]
    step: shell
    with: {argv: [echo, "would be said"]}
"""
JOB = {"job": {"grace_s": 20.0, "ports": []}}
GONE = FailureClass.LOST_EVIDENCE_GONE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("dry")
    with make(found, TASKS) as service:
        service.run()
        service.claim("bad")
    return found


@pytest.fixture
def untouched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The workspace, held to be byte for byte the same afterwards; hosts may not be asked."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a host was asked")

    monkeypatch.setattr(Host, "_verb", refuse)
    monkeypatch.setenv("RUNBOOK_ACTOR", "tester")
    before = everything(folder)
    yield folder
    assert everything(folder) == before


def everything(folder: Path) -> tuple[object, ...]:
    with Service.open(folder) as service:
        revision, snapshot = service.store.revision(), service.snapshot()
    texts = {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("state.db")
    }
    return revision, snapshot, texts


CASES = [
    (["run"], 'start ask on box, once a person says yes to "Go on?"'),
    (["retry", "bad"], "task.moved bad ready"),
    (["retry", "--all-failed"], "task.moved bad ready"),
    (["skip", "bad", "--reason", "no use"], "task.moved bad skipped"),
    (["gate", "approve", "ask"], "task.moved ask ready"),
    (["note", "said"], "note.added workspace said"),
    (["note", "--decision", "so be it"], "decision.made workspace so be it"),
    (["claim", "good"], "claim.taken good tester"),
    (["release", "bad"], "claim.released bad tester"),
    (["doc", "add", "runbook.yaml"], "document.added runbook.yaml"),
    (["verify"], "check on box: good: file"),
    (["reconcile"], "change nothing"),
    (["host", "rent", "box", "--usd-per-hour", "2"], "would record: host."),
    (["host", "bind", "box", "user@elsewhere"], "would meet user@elsewhere"),
    (["host", "probe", "box"], "would ask"),
    (["host", "repin", "box"], "would ask"),
    (["init"], "would take"),
    (["push", "{tmp}/state.runbook"], "would write revision"),
]


@pytest.mark.parametrize(("words", "said"), CASES, ids=[" ".join(words) for words, _ in CASES])
def test_a_dry_run_tells_and_changes_nothing(
    untouched: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    words = [word.format(tmp=tmp_path) for word in words]
    result = CliRunner().invoke(cli, ["-w", str(untouched), *words, "--dry-run"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert said in result.output
    told = CliRunner().invoke(cli, ["-w", str(untouched), *words, "--dry-run", "--json"])
    data = json.loads(told.output)["data"]
    assert data["dry_run"] is True
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_told_with_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, TASKS).close()
    monkeypatch.setattr(Host, "_verb", None)
    result = CliRunner().invoke(cli, ["-w", str(tmp_path), "run", "--dry-run", "--until", "good"])
    assert "would start good on box" in result.output
    assert "echo made" in result.output
    assert "bad" not in result.output


def test_the_whole_way_is_told_with_what_is_not_known_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = (
        TASKS
        + """\
  use:
    title: Use
    phase: one
    needs: [next, {task: bad, condition: any}]
    step: shell
    with: {argv: [use, "${task.next.out.path}"]}
  never:
    title: Never
    phase: one
    needs: [bad]
    step: shell
    with: {argv: [never]}
"""
    )
    with make(tmp_path, use) as service:
        service.run(only=["bad"])
    monkeypatch.setattr(Host, "_verb", None)
    said = CliRunner().invoke(cli, ["-w", str(tmp_path), "run", "--dry-run"]).output
    starts = [line.split()[2] for line in said.splitlines() if line.startswith("would start")]
    assert starts == ["good", "ask", "next", "use"], "each after what it needs"
    assert "would start use on box, after next" in said
    assert "use '${task.next.out.path}'" in said
    assert "never" not in said, "a person decides about `bad` first"


def test_a_stop_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    with make(tmp_path, TASKS.replace("exit 1", "sleep 30")) as service:
        left = threading.Event()
        service.run(only=["bad"], stop_event=left, listen=lambda _: left.set())
        revision = service.store.revision()
        with monkeypatch.context() as patch:
            patch.setattr(Host, "_verb", None)
            words = ["-w", str(tmp_path), "stop", "bad", "--dry-run"]
            result = CliRunner().invoke(cli, words)
        assert "would stop attempt" in result.output
        assert "TERM to its process group" in result.output
        assert service.store.revision() == revision
        service.stop("bad")


def test_a_wrong_verb_is_refused_in_a_dry_run_too(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["-w", str(folder), "retry", "good", "--dry-run"])
    assert result.exception is not None
    assert "to make it again needs a reason" in str(result.exception)


def test_superseding_is_told_without_asking_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a state that was shared another workspace may have run it: only its host knows."""
    with make(tmp_path, TASKS) as service:
        service.workspace.share_file.touch()
        monkeypatch.setattr(Host, "_verb", None)
        monkeypatch.setattr(hosts.Hosts, "of_role", None)
        service.dry_run = True
        service.supersede("good", reason="ours counts")
        (asks, later) = service.would
        assert asks.startswith("ask box whether another workspace ran good: ")
        assert later.endswith("whether box answers, whether another workspace runs it, or ran it")
        service.would = []
        service.supersede("next", reason="theirs is lost")  # blocked here, but it may run there
        assert service.would[0].startswith("ask box whether another workspace ran next: ")
        service.dry_run = False
        with service.store.write() as tx:
            attempt = tx.create_attempt("good", host="box", epoch=None, detail=JOB)
            tx.move_attempt(attempt.id, AttemptState.LOST, expect={attempt.state}, cls=GONE)
            tx.move_task("good", TaskState.ATTENTION, expect={TaskState.READY})
        service.dry_run, service.would = True, []
        assert service.supersede("good", reason="gone").state is TaskState.READY
        burn, later = service.would
        assert burn.startswith(f"burn attempt {attempt.id}, then stop attempt")
        assert later.endswith("whether box answers, what is left of it there")
        service.dry_run = False
        assert service.snapshot().task("good").state is TaskState.ATTENTION
        service.workspace.share_file.unlink()
        with pytest.raises(RunbookError, match="Cannot supersede `next`: it is blocked"):
            service.supersede("next", reason="no")
