"""Checkpoints appear whole or not at all; the optimiser's masters and schedule are right."""

from __future__ import annotations

import errno
import itertools
import math
from typing import TYPE_CHECKING

import pytest
import torch

from dflash import checkpoint
from dflash.checkpoint import (
    STATE,
    checkpoints,
    latest_checkpoint,
    load_state,
    remove_partial,
    save_checkpoint,
)
from dflash.drafter import Drafter, load_drafter
from dflash.errors import DflashError
from dflash.optim import PATIENCE, Optimiser
from dflash.schedule import learning_rate
from dflash.train_config import TrainConfig
from tests.support.tiny_targets import tiny_drafter_config

if TYPE_CHECKING:
    from pathlib import Path


def drafter(dtype: torch.dtype = torch.float32) -> Drafter:
    torch.manual_seed(0)
    return Drafter(tiny_drafter_config()).to(dtype)


def options(**changes: object) -> TrainConfig:
    return TrainConfig.from_json({"target": "t", "data": "d", "out": "o", **changes})


def save(out: Path, step: int, keep: int = 2) -> None:
    state = {"step": step, "tokens": 0, "elapsed_s": 0.0, "optimiser": {}, "rng": [],
             "scale": torch.ones(1)}  # fmt: skip
    save_checkpoint(out, step, drafter(), state, provenance={}, keep=keep)


def test_newest_complete_one_wins_and_old_ones_go(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-000002", "step-000003"]
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert (tmp_path / "latest").read_text() == "step-000003\n"
    assert load_state(newest)["step"] == 3
    load_drafter(newest)


def test_a_kill_while_an_old_one_goes_leaves_no_part_of_it_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, keep=1)

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            (path / STATE).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2, keep=1)
    monkeypatch.undo()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000002"]
    remove_partial(tmp_path)
    assert not list(tmp_path.glob(".partial*"))


@pytest.mark.parametrize("at", ["save_drafter", "write_json"])
def test_a_full_disk_leaves_the_previous_one(
    tmp_path: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, at, full)
        with pytest.raises(DflashError, match="No space left"):
            save(tmp_path, 2)
    assert [p.name for p in tmp_path.glob("*step*")] == ["step-000001"]
    save(tmp_path, 2)
    assert (latest_checkpoint(tmp_path) or tmp_path).name == "step-000002"


def test_a_copy_that_someone_keeps_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("step-000002", "step-000002-good", "step-abc", "step-999999", "step-1000000"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == [
        "step-000002", "step-999999", "step-1000000",
    ]  # fmt: skip


def test_what_a_kill_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    half = tmp_path / ".partial-step-000002"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"torn")
    assert (latest_checkpoint(tmp_path) or tmp_path).name == "step-000001"
    remove_partial(tmp_path)
    assert not half.exists()


def test_a_kill_between_rename_and_latest_is_survived(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "latest").write_text("step-000001\n")
    assert (latest_checkpoint(tmp_path) or tmp_path).name == "step-000002"
    save(tmp_path, 2)  # the same step again is the same checkpoint
    assert (tmp_path / "latest").read_text() == "step-000002\n"


def test_a_torn_state_names_the_folder(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = tmp_path / "step-000001" / "training_state.pt"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DflashError, match="step-000001"):
        load_state(tmp_path / "step-000001")


def fill_gradients(model: Drafter, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_all_parameters_train_at_one_rate_and_only_matrices_decay() -> None:
    model = drafter()
    optimiser = Optimiser(model, options(weight_decay=0.1))
    groups = optimiser.adamw.param_groups
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    assert {g["lr"] for g in groups} == {6e-4}
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


def test_bf16_keeps_updates_that_bf16_alone_would_lose() -> None:
    model = drafter(torch.bfloat16)
    optimiser = Optimiser(model, options(weight_decay=0.0))
    before = model.norm.weight.clone()
    for _ in range(100):
        fill_gradients(model, 1e-3)
        optimiser.collect()
        optimiser.step(1e-4, divisor=1.0)
    assert model.norm.weight.dtype == torch.bfloat16
    assert (model.norm.weight - before).abs().min() > 0  # 100 x 1e-4, each below bf16's step at 1


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_named() -> None:
    model = drafter()
    optimiser = Optimiser(model, options())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    for attempt in range(PATIENCE):
        fill_gradients(model, 1.0)
        model.hidden_norm.weight.grad[0] = math.nan
        if attempt + 1 < PATIENCE:
            assert optimiser.step(1e-3, divisor=1.0).skipped == "hidden_norm.weight"
    with pytest.raises(DflashError, match="hidden_norm"):
        optimiser.step(1e-3, divisor=1.0)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_schedules_warm_up_hold_and_decay() -> None:
    wsd = [learning_rate(s, 100, options(lr=1.0)) for s in range(100)]
    assert wsd[0] == 0.25
    assert wsd[4:80] == [1.0] * 76
    assert wsd[79] >= wsd[85] >= wsd[99] >= 0.1
    assert wsd[99] < 0.11
    cosine = [learning_rate(s, 100, options(lr=1.0, schedule="cosine")) for s in range(100)]
    assert max(cosine) == 1.0
    assert cosine[50] == pytest.approx(0.58, abs=0.03)
    assert all(a >= b for a, b in itertools.pairwise(cosine[4:]))
    assert learning_rate(99, 100, options(lr=1.0, schedule="constant")) == 1.0
