"""What scripts and agents rely on: JSON as documented, exit codes, completion, true docs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from runbook.cli.answers import ANSWERS, ERROR, EXITS, REHEARSAL, SCHEMA, problems_of
from runbook.cli.main import cli as group
from runbook.errors import Exit
from tests.support.all_verbs import all_verbs
from tests.support.deadline import wait_for
from tests.support.workspaces import cli, make

if TYPE_CHECKING:
    from collections.abc import Iterator


ROOT = Path(__file__).parents[2]
TASKS = """\
  good: {title: Good, phase: one, step: shell, with: {sh: "echo hi"}}
  bad: {title: Bad, phase: one, step: shell, with: {sh: "exit 1"}}
  ask: {title: Ask, phase: one, needs: [good], gate: {ask: "Go?"}, step: shell, with: {sh: "true"}}
"""
WITHOUT_JSON = {
    "schema": "is JSON itself",
    "completion": "is for a shell",
    "confirm": "is for a person",
    "mcp": "speaks its own protocol",
    "tui": "is for a person",
    "host shell": "is for a person",
    "host tunnel": "is for a person",
}
LOOKING = {
    *("validate", "plan", "status", "next", "brief", "logs", "results", "events", "audit", "wait"),
    "checkpoints",
    *(
        "doctor",
        "progress",
        "doc list",
        "gate list",
        "host list",
        "host drill",
        "host put",
        "host get",
        "pull",
    ),
}
"""Verbs that change no graph (files are none of it), or have it changed by what they find."""


VERBS = all_verbs()


@pytest.mark.parametrize(("words", "command"), VERBS, ids=[words for words, _ in VERBS])
def test_every_verb_has_an_example_and_its_options(words: str, command: click.Command) -> None:
    example = (command.help or "").partition("Example: ")[2].split("\n")[0]
    known = words.replace("host add", "host bind")  # one verb under two names
    assert example.startswith(f"runbook {known}"), "help ends with one example of this verb"
    shown = command.get_help(click.Context(command, info_name=words, terminal_width=80))
    assert f"Example: {example}" in shown, "in one line, so that it can be copied"
    options = {name for option in command.params for name in option.opts}
    assert ("--json" in options) != (words in WITHOUT_JSON)
    if words not in LOOKING and words not in WITHOUT_JSON:
        assert "--expect-rev" in options
        assert "--dry-run" in options or words == "watch"


# In this order: each works on what the ones before left.
ASKED: list[tuple[str, str]] = [
    ("init", "init"),
    ("validate", "validate"),
    ("plan", "plan"),
    ("plan --cost", "plan --cost"),
    ("host list", "host list"),
    ("host probe", "host probe box"),
    ("host put", "host put box {tmp}/ws/runbook.yaml {tmp}/sent"),
    ("host clean", "host clean box"),
    ("host bind", "host bind box local"),
    ("status", "status"),
    ("status TASK", "status good"),
    ("next", "next"),
    ("brief", "brief"),
    ("logs", "logs good"),
    ("results", "results"),
    ("events", "events"),
    ("progress", "progress"),
    ("progress", "progress --check"),
    ("wait", "wait"),
    ("*", "retry bad --dry-run"),
    ("*", "run --dry-run"),
    ("retry", "retry bad"),
    ("run", "run"),
    ("watch", "watch --until-done"),
    ("retry --all-failed", "retry --all-failed"),
    ("skip", "skip bad --reason x"),
    ("verify", "verify"),
    ("reconcile", "reconcile"),
    ("gate list", "gate list"),
    ("gate approve", "gate approve ask"),
    ("note", "note x"),
    ("doc add", "doc add runbook.yaml"),
    ("doc list", "doc list"),
    ("doc remove", "doc remove runbook.yaml"),
    ("claim", "claim good"),
    ("release", "release good"),
    ("push", "push {tmp}/state.runbook"),
    ("pull", "pull {tmp}/state.runbook"),
    ("doctor", "doctor --no-hosts"),
    ("host rent", "host rent box --usd-per-hour 2"),
    ("host forget", "host forget box"),
]


def test_every_answer_is_as_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNBOOK_ACTOR", "tester")
    with make(tmp_path / "ws", TASKS) as service:
        service.run()
    described: defaultdict[str, list[Any]] = defaultdict(list)
    for answer in (*ANSWERS, REHEARSAL):
        described[answer.verb].append(answer)
    for key, line in ASKED:
        verb, _, form = key.partition(" ")
        words = [word.format(tmp=tmp_path) for word in line.split()]
        with asked_to_leave() if words[0] == "watch" else nullcontext():
            result = CliRunner().invoke(group, ["-w", str(tmp_path / "ws"), *words, "--json"])
        told = json.loads(result.stdout)
        assert set(told) == {"schema", "verb", "revision", "data"}
        assert told["schema"] == SCHEMA
        assert told["verb"] == words[0]
        assert isinstance(told["revision"], int) or words[0] == "validate"
        candidates = [
            found for found in described[verb] if not form or form in found.form.split(", ")
        ]
        problems = [problems_of(found, told["data"]) for found in candidates]
        assert [] in problems, (line, problems)


@contextmanager
def asked_to_leave() -> Iterator[None]:
    """By a signal, once it is listened for: before that it would end this process."""
    before = signal.getsignal(signal.SIGTERM)

    def ask() -> None:
        wait_for(lambda: signal.getsignal(signal.SIGTERM) != before, what="somebody to listen")
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    yield
    asking.join()


UNTRIED = {
    "stop",
    "restart",
    "supersede",
    "audit",
    "checkpoints",
}  # each needs a world of its own; it has its own tests


def test_every_verb_with_json_is_described_and_tried() -> None:
    described = {answer.verb for answer in ANSWERS}
    tried = {line.split()[0] for _, line in ASKED}
    for words, _ in VERBS:
        verb = words.split()[0]
        if words not in WITHOUT_JSON and verb not in UNTRIED:
            assert verb in described, f"describe {words} in runbook/cli/answers.py"
            assert verb in tried, f"ask {words} in this test"


def test_a_refusal_is_json_too(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    for words, code in (
        (["retry", "good"], 2),
        (["status", "goood"], 2),
        (["status", "--no-such-option"], 2),
        (["note", "x", "--expect-rev", "1"], 6),
    ):
        result = cli(tmp_path, *words, "--json")
        told = json.loads(result.stdout)
        assert told["error"].keys() == {key.name for key in ERROR}
        assert (told["verb"], told["error"]["exit_code"]) == (words[0], code)
        assert result.returncode == code
        assert told["error"]["message"] in result.stderr.replace("\n  ", " ") or code == 2


def test_a_moved_world_is_told_with_what_moved(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        revision = service.store.revision()
        service.note("meanwhile")
    result = cli(tmp_path, "note", "mine", "--expect-rev", str(revision))
    assert result.returncode == Exit.CONFLICT
    assert f"at revision {revision + 1}, not {revision}" in result.stderr
    assert "note.added" in result.stderr


def test_every_exit_code_is_described() -> None:
    assert set(EXITS) == set(Exit)
    assert [int(code) for code in Exit] == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(group, ["completion", shell])
    assert f"_RUNBOOK_COMPLETE={shell}_complete" in result.output


def test_completion_completes() -> None:
    program = "import sys; sys.argv = ['runbook']; from runbook.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "_RUNBOOK_COMPLETE": "bash_complete",
            "COMP_WORDS": "runbook sta",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.stdout.split() == ["plain,status"], done.stderr


def test_no_colour_without_a_terminal_or_with_no_color(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runbook import report

    make(tmp_path, TASKS).close()
    assert "\x1b" not in cli(tmp_path, "status").stdout
    monkeypatch.setattr(report.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[32m" in report.painted("x", "done")
    monkeypatch.setenv("NO_COLOR", "1")
    assert report.painted("x", "done") == "x"


PRINT = (
    "import runpy, sys; made = runpy.run_path('scripts/render_docs.py')['PAGES'];"
    "sys.stdout.write(made[sys.argv[1]]())"
)


@pytest.mark.parametrize("page", ["cli.md", "json.md"])
def test_the_reference_is_what_the_commands_say(page: str) -> None:
    made = subprocess.run(
        [sys.executable, "-c", PRINT, page], capture_output=True, text=True, check=True, cwd=ROOT
    )
    kept = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert kept == made.stdout, "run: python scripts/render_docs.py"
