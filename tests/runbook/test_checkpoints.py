"""`runbook checkpoints`: what of a training run lies on its host, read there and nowhere else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from runbook.errors import RunbookError
from runbook.verbs.data import listed
from tests.support.workspaces import cli, make

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.service import Service

TASKS = """\
  other: {title: No training, phase: one, step: shell, with: {argv: ["true"]}}
  train:
    title: Train
    phase: one
    step: train
    with: {venv: /nowhere, target: /nowhere, data: /nowhere, out: "${host.work}/drafter"}
"""


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "w", TASKS)


def begun(service: Service, folder: Path) -> None:
    """An attempt that knows where its checkpoints go; no job is needed to look at them."""
    with service.store.write() as tx:
        tx.create_attempt("train", host="box", epoch=None, detail={"out": {"path": str(folder)}})


def checkpoint(folder: Path, step: int, size: int) -> None:
    one = folder / f"step-{step:06d}"
    one.mkdir(parents=True)
    (one / "model.safetensors").write_bytes(b"x" * size)


def test_what_lies_there_is_listed(service: Service, tmp_path: Path) -> None:
    out = tmp_path / "it's a [/] place"
    for step in (100, 200, 300):
        checkpoint(out, step, step * 1000)
    (out / ".partial-step-000400").mkdir()
    (out / "step-notes").write_text("not one of ours")
    (out / "latest").write_text("step-000300\n")
    (out / "best").write_text("step-000100\n")
    begun(service, out)
    found = service.checkpoints("train")
    assert [one.step for one in found] == [100, 200, 300]
    assert [one.step for one in found if one.latest] == [300]
    assert [one.step for one in found if one.best] == [100]
    assert found[2].size >= 300_000
    assert found[0].path == f"{out}/step-000100"
    told = cli(tmp_path / "w", "checkpoints", "train")
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["100", "200", "300"]
    rows = json.loads(cli(tmp_path / "w", "checkpoints", "train", "--json").stdout)
    assert [row["best"] for row in rows["data"]["checkpoints"]] == [True, False, False]


def test_before_the_first_there_are_none(service: Service, tmp_path: Path) -> None:
    with pytest.raises(RunbookError, match="has no checkpoints"):
        service.checkpoints("train")
    begun(service, tmp_path / "not yet")
    assert service.checkpoints("train") == ()
    assert cli(tmp_path / "w", "checkpoints", "train").stdout == "None yet.\n"


def test_only_training_has_some(service: Service, tmp_path: Path) -> None:
    ended = cli(tmp_path / "w", "checkpoints", "other")
    assert ended.returncode == 2
    assert "its step is `shell`" in ended.stderr


def test_odd_lines_are_passed_over() -> None:
    text = "12\tstep-000001\nnonsense\n5\tstep-../../x\nlatest step-000001 \n\n"
    assert [(one.step, one.latest) for one in listed("/w", text)] == [(1, True)]
