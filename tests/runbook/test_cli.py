"""The command line as a process: exit codes, JSON, one clear message per wrong input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from runbook.cli.main import COMMANDS
from runbook.cli.main import cli as group
from runbook.cli.results import headline, loss_points
from tests.support.workspaces import cli, make, states

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  hello:
    title: Hello
    phase: one
    step: shell
    with: {sh: "echo hello; echo oops >&2"}
  bad:
    title: Bad
    phase: one
    needs: [hello]
    step: shell
    with: {sh: "echo cannot go on >&2; exit 1"}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in which one task is done and one has failed."""
    folder = tmp_path_factory.mktemp("ran")
    with make(folder, TASKS) as service:
        service.run()
    return folder


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    result = CliRunner().invoke(group, [verb, "--help"])
    assert result.exit_code == 0, result.output
    if "Commands:" in result.output:
        return  # a group: its commands have the examples
    assert f"Example: runbook {verb}" in result.output


def test_init_bind_run_status(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(make_text())
    folder = tmp_path / "ws"
    made = cli(tmp_path, "init", str(tmp_path / "my.yaml"), "--dir", str(folder))
    assert f"runbook -w {folder} host bind box local" in made.stdout, made.stderr
    refused = cli(folder, "run")
    assert refused.returncode == 3
    assert "No machine is bound to the host role `box`" in refused.stdout
    assert cli(folder, "host", "bind", "box", "local").returncode == 0
    ran = cli(folder, "run")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    status = json.loads(cli(folder, "status", "--json").stdout)
    assert (status["schema"], status["verb"]) == (1, "status")
    assert [task["state"] for task in status["data"]["tasks"]] == ["done"]
    again = cli(tmp_path, "init", str(tmp_path / "my.yaml"), "--dir", str(folder))
    assert again.returncode == 0
    assert json.loads(cli(folder, "status", "--json").stdout)["data"]["tasks"][0]["state"] == "done"


def make_text() -> str:
    return """\
version: 1
name: mine
title: Mine
hosts: {box: {}}
phases: {one: One}
defaults: {host: box}
tasks:
  hello:
    title: Hello
    phase: one
    step: shell
    with: {argv: [echo, hello]}
"""


def test_logs_next_brief_and_results_tell_of_a_failure(ran: Path) -> None:
    assert cli(ran, "logs", "hello", "--out").stdout == "hello\n"
    both = cli(ran, "logs", "hello").stdout.splitlines()
    assert (both[0], both[-1]) == ("hello", "oops")
    assert cli(ran, "logs", "hello", "--err").stdout == "oops\n"
    following = cli(ran, "next")
    assert following.stdout.splitlines()[0] == f"runbook -w {ran} retry bad"
    brief = cli(ran, "brief").stdout
    assert "`bad` failed: `ended with exit code 1: cannot go on`" in brief
    assert "✗ failed" in cli(ran, "results").stdout
    assert "exit code 1: cannot go on" in cli(ran, "status", "bad").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["frob"], 2, "There is no verb `frob`"),
        (["statsu"], 2, "Did you mean `status`?"),
        (["status", "helo"], 2, "helo"),
        (["retry", "hello"], 2, "`hello` is done; to make it again needs a reason"),
        (["stop", "hello"], 2, "Nothing of `hello` runs"),
        (["supersede", "bad", "--reason", "x"], 2, "Cannot supersede `bad`: it is failed"),
        (["skip", "bad", "--reason", " "], 2, "needs a reason"),
        (["gate", "approve", "bad"], 2, "Cannot approve `bad`"),
        (["note", "   "], 2, "empty"),
        (["logs", "nothing"], 2, "nothing"),
        (["run", "--until", "nothing"], 2, "nothing"),
        (["retry", "bad", "--expect-rev", "1"], 6, "revision"),
        (["host", "bind", "bxo", "local"], 2, "no host role `bxo`"),
        (["host", "probe", "bxo"], 2, "no host role `bxo`"),
        (["wait", "hello", "--timeout", "x"], 2, "not a valid float"),
        (["verify", "nothing"], 2, "nothing"),
    ],
)
def test_wrong_input_gets_one_message_and_its_code(
    ran: Path, words: list[str], code: int, said: str
) -> None:
    result = cli(ran, *words)
    assert result.returncode == code, result.stdout + result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 4


def test_no_workspace_is_said_with_the_way_to_one(tmp_path: Path) -> None:
    result = cli(tmp_path, "status")
    assert result.returncode == 2
    assert "No workspace" in result.stderr
    assert "runbook init" in result.stderr


def test_a_wrong_runbook_file_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(make_text().replace("title: Hello", "titel: Hello"))
    result = cli(tmp_path, "init", str(tmp_path / "wrong.yaml"), "--dir", str(tmp_path / "ws"))
    assert result.returncode == 2
    assert "titel" in result.stderr
    assert "title" in result.stderr
    assert not (tmp_path / "ws").exists()


def test_an_unknown_source_lists_the_bundled_runbooks(tmp_path: Path) -> None:
    result = cli(tmp_path, "init", "dmeo", "--dir", str(tmp_path / "ws"))
    assert result.returncode == 2
    assert "demo" in result.stderr


def test_a_corrupt_database_is_named_and_left_alone(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    database = tmp_path / ".runbook" / "state.db"
    for extra in tmp_path.glob(".runbook/state.db-*"):
        extra.unlink()
    garbage = b"this is no database" * 1000
    database.write_bytes(garbage)
    result = cli(tmp_path, "status")
    assert result.returncode == 2
    assert "state.db" in result.stderr
    assert "Traceback" not in result.stderr
    assert database.read_bytes() == garbage


def test_an_emptied_database_is_not_made_anew(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    database = tmp_path / ".runbook" / "state.db"
    for extra in tmp_path.glob(".runbook/state.db-*"):
        extra.unlink()
    database.write_bytes(b"")
    result = cli(tmp_path, "status")
    assert result.returncode == 2
    assert "is empty" in result.stderr
    assert database.stat().st_size == 0


def test_verify_redo_makes_what_was_deleted_ready_again(tmp_path: Path) -> None:
    tasks = """\
  made:
    title: Made
    phase: one
    step: shell
    with: {sh: "touch ${host.work}/x"}
    done_when: [{file: {path: "${host.work}/x"}}]
"""
    with make(tmp_path, tasks) as service:
        service.run()
    (tmp_path / "work" / "x").unlink()
    assert cli(tmp_path, "verify").returncode == 4
    with make(tmp_path, tasks) as service:
        assert states(service) == {"made": "stale"}
        service.retry("made")
        service.run()
    (tmp_path / "work" / "x").unlink()
    assert cli(tmp_path, "verify", "--redo").returncode == 0
    with make(tmp_path, tasks) as service:
        assert states(service) == {"made": "ready"}


def test_output_with_control_codes_is_shown_without_them(tmp_path: Path) -> None:
    tasks = """\
  loud:
    title: Loud
    phase: one
    step: shell
    with: {sh: "printf '10%%\\\\r100%%\\\\n\\\\033[31mred\\\\033[0m\\\\n'"}
"""
    with make(tmp_path, tasks) as service:
        service.run()
    shown = cli(tmp_path, "logs", "loud").stdout
    assert "\x1b" not in shown
    assert shown.splitlines()[0] == "100%"


def test_every_failed_task_can_be_retried_at_once(ran: Path) -> None:
    assert "--all-failed" in cli(ran, "retry").stderr
    assert cli(ran, "retry", "--all-failed").stdout == "ready again: bad\n"
    assert cli(ran, "retry", "--all-failed").stdout == "no task has failed\n"
    assert cli(ran, "run").returncode == 3


def test_an_evaluation_is_told_in_one_sentence() -> None:
    out = {"macro": 1.471, "untrained": 1.0, "prompts": 12, "lossless": "exact"}
    gain = {"gain": 0.47, "gain_low": 0.381, "gain_high": 0.5638}
    assert headline(out | gain) == (
        "Acceptance length on 12 unseen prompts: trained 1.47, untrained 1.00; "
        "gain over untrained +0.47 (95 % interval +0.38 to +0.56); lossless: exact."
    )


def test_a_torn_last_progress_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    path.write_bytes(b'{"done": 1, "metrics": {"loss": 2.5}}\n{"done": 2, "metr')
    assert loss_points(path) == [(1.0, 2.5)]


def test_an_edited_file_is_told_until_it_is_taken_over(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    path = tmp_path / "runbook.yaml"
    assert "was edited" not in cli(tmp_path, "status").stdout
    path.write_text(path.read_text().replace("echo hello", "echo HELLO"))
    assert "was edited" in cli(tmp_path, "status").stdout
    assert "was edited" in cli(tmp_path, "next").stdout
    assert "was edited" in cli(tmp_path, "brief").stdout
    assert cli(tmp_path, "init", "--dir", str(tmp_path)).returncode == 0
    assert "was edited" not in cli(tmp_path, "status").stdout


def test_init_does_not_pretend_to_use_another_source(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    result = cli(tmp_path, "init", "demo", "--dir", str(tmp_path))
    assert result.returncode == 2
    assert "demo was not used" in result.stderr
