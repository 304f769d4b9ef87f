"""Commands in README and docs: all are commands that exist, and those that can be run are run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.doc_commands import ROOT, blocks, problems, script, wrong

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
)
MADE = ("docs/cli.md",)
"""Its blocks are usage lines; the example in each is held by the test of the verbs."""
RUN = [
    name
    for name in PAGES
    if name not in MADE
    and any(b.language == "sh" and not b.not_run for b in blocks((ROOT / name).read_text("utf-8")))
]


@pytest.mark.parametrize("page", [name for name in PAGES if name not in MADE])
def test_every_command_exists_with_its_options(page: str) -> None:
    assert problems((ROOT / page).read_text(encoding="utf-8")) == []


def test_the_examples_of_the_verbs_are_commands() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    examples = re.findall(r"^(runbook .*?)   # example$", text, re.MULTILINE)
    assert len(examples) > 40
    assert [(line, said) for line in examples for said in wrong(shlex.split(line))] == []


@pytest.mark.parametrize("page", RUN)
def test_its_blocks_run(page: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    bin_, work = home / "bin", tmp_path / "work"
    for folder in (bin_, work):
        folder.mkdir(parents=True)
    shutil.copytree(ROOT / "tests" / "assets" / "docs", work, dirs_exist_ok=True)
    program = bin_ / "runbook"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m runbook "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    found = list(blocks((ROOT / page).read_text(encoding="utf-8")))
    done = subprocess.run(
        ["sh", "-c", script(found)],
        cwd=work,
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith("RUNBOOK_")},
            "HOME": str(home),
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # nobody is at a terminal
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("```sh\nrunbook init demo --dri demo\n```\n", "--dri"),
        ("<!-- not run: no time -->\n\n```sh\ndflash train --tragets 3\n```\n", "--tragets"),
        ("Then `runbook host bnid box local`.", "bnid"),
        ("Then `runbook retry TASK --reson x`.", "--reson"),
        ("Then `runbook release a b`.", "too many words"),
        ("`make demmo`", "demmo"),
        ("```sh\npython3 tests/benchmarks/fanout.py --hsots 3\n```\n", "--hsots"),
        ("```sh\nrunbook brief \\\n  --for x --tokns 3\n```\n", "--tokns"),
    ],
)
def test_a_wrong_command_is_found(page: str, said: str) -> None:
    (found,) = problems(page)
    assert said in found


def test_a_block_that_fails_stops_its_page() -> None:
    page = "<!-- first: true -->\n```sh\nfalse   # exit 1\nfalse\ntrue\n```\n"
    ended = subprocess.run(
        ["sh", "-c", script(list(blocks(page)))], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 97
    assert ended.stderr.splitlines()[-1] == "$ false"


HINT = re.compile(r"`(runbook [^`\"\n]+)`")


def test_commands_in_messages_exist() -> None:
    """Hints of errors, descriptions, help: whatever the program tells somebody to type."""
    wrongs = []
    for package in ("runbook", "state", "remote", "dflash"):
        for path in (ROOT / package).rglob("*.py"):
            for span in HINT.findall(path.read_text(encoding="utf-8")):
                plain = re.sub(r"\{[^}]*\}", "X", span).split("...")[0]
                wrongs += [f"{path.name}: {span}: {said}" for said in wrong(plain.split())]
    assert wrongs == []
