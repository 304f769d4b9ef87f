"""`host put`, `get` and `clean` on this machine; test_host_verbs.py has them over a real sshd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.host_files import there_and_back
from tests.support.workspaces import cli, make, settle

if TYPE_CHECKING:
    from pathlib import Path

TASKS = """\
  one:
    title: One
    phase: one
    step: shell
    with: {sh: "seq 200000; echo mine > $RUNBOOK_JOB_DIR/mine"}
"""


def test_a_tree_goes_there_and_comes_back(tmp_path: Path) -> None:
    make(tmp_path / "ws", TASKS).close()
    there_and_back(tmp_path / "ws", tmp_path)


def test_old_jobs_shrink_to_their_outcome(tmp_path: Path) -> None:
    with make(tmp_path, TASKS) as service:
        service.run()
    settle(tmp_path)
    words = ("host", "clean", "box", "--keep", "0", "--older-than", "0s")
    would = cli(tmp_path, *words, "--dry-run").stdout
    one = re.search(r"would shrink \S+: (1\.\d MiB)", would)
    assert one, would
    assert f"would free about {one[1]} on box, of 1 jobs" in would
    told = cli(tmp_path, *words)
    assert told.returncode == 0, told.stderr
    assert f"1 jobs shrunk, {one[1]} freed" in told.stdout, "as foretold"
    assert "keeps what its payload made: mine" in told.stdout
    assert cli(tmp_path, "verify").returncode == 0
    assert cli(tmp_path, "doctor").returncode == 0
    log = cli(tmp_path, "logs", "one", "-n", "1")
    assert log.stdout.strip().endswith("200000"), "our copy of its log is whole"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("put", "box", "nothing", "/tmp/x"), "does not exist"),
        (("get", "box", "/nothing/there", "x"), "No such file"),
        (("put", "box", "runbook.yaml", "data"), "/work/data"),
        (("put", "bix", "runbook.yaml", "/tmp/x"), "no host role `bix`"),
        (("clean", "box", "--older-than", "soon"), "--older-than"),
    ],
)
def test_wrong_calls_are_told(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    make(tmp_path, TASKS).close()
    given = [str(tmp_path / word) if word == "runbook.yaml" else word for word in words]
    ended = cli(tmp_path, "host", *given)
    assert ended.returncode != 0
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
