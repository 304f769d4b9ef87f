"""Two databases that went apart, one host: what either starts, the host starts once."""

from __future__ import annotations

import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from runbook.engine.elsewhere import RunElsewhere
from runbook.service import Service
from runbook.sharing.place import Place
from tests.support.shared import take
from tests.support.workspaces import command, make, states

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("one", "two", "three", "four")
TASKS = "".join(
    f"""\
  {name}:
    title: {name}
    phase: one
    step: shell
    with: {{sh: "echo {name} >> ${{host.work}}/starts; sleep 0.5"}}
"""
    for name in NAMES
)


def apart(tmp_path: Path) -> tuple[Path, Path]:
    """Two workspaces with one past, each with an event that the other does not have."""
    place = Place(url=str(tmp_path / "state.runbook"))
    with make(tmp_path / "ann", TASKS) as ann:
        ann.push(place)
        take(place, tmp_path / "bob")
        ann.note("ann's")
    with Service.open(tmp_path / "bob", actor="bob") as bob:
        bob.note("bob's")
    return tmp_path / "ann", tmp_path / "bob"


def starts(ann: Path) -> Counter[str]:
    return Counter((ann / "work" / "starts").read_text().split())


def test_both_run_at_once(tmp_path: Path) -> None:
    folders = apart(tmp_path)
    with (tmp_path / "said").open("wb") as said:
        runs = [
            subprocess.Popen(command(folder, "run"), stdout=said, stderr=said) for folder in folders
        ]
        codes = [run.wait(timeout=120) for run in runs]
    text = (tmp_path / "said").read_text()
    assert starts(folders[0]) == Counter(NAMES), text
    assert "Traceback" not in text
    ended = []
    for folder in folders:
        with Service.open(folder) as service:
            ended.append(states(service))
    for name in NAMES:
        # One of them ran it. The other was told by the host, before it began or when it launched,
        # and says so instead of guessing.
        other = sorted(states[name] for states in ended)
        assert other in (["attention", "done"], ["done", "ready"]), (ended, text)
    assert any(codes)


def test_the_second_is_told_whose_it_is(tmp_path: Path) -> None:
    ann, bob = apart(tmp_path)
    with Service.open(ann, actor="ann") as first:
        first.run(only=["one"])
        attempt = first.snapshot().attempts_of("one")[0]
    refused = pytest.raises(RunElsewhere, match=attempt.id)
    with Service.open(bob, actor="bob") as second, refused:
        second.run(only=["one"])
    assert starts(ann) == Counter({"one": 1})
