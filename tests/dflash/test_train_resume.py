"""What a resumed run may change: refused by name, or allowed because it is exact."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dflash import run_record
from dflash.checkpoint import load_state
from dflash.errors import DflashError, InputInvalid
from dflash.files import write_json
from dflash.random_states import rng_of_all, set_rng
from dflash.run_plan import plan
from dflash.train import train
from dflash.train_config import TrainConfig
from tests.support.ranks import train_in_ranks
from tests.support.tiny_runs import losses, make_inputs, options, write_set


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def run(inputs: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainConfig.from_json(options(inputs, out, **changes)))


def weights(out: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(out / f"step-{step:06d}" / "model.safetensors")


def same(one: Path, other: Path, step: int) -> bool:
    theirs = weights(other, step)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in weights(one, step).items())


def test_a_checkpoint_holds_all_that_a_run_goes_on_from(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    values = options(inputs, out, drafters=2, steps=2, save_every=2, dtype="bfloat16")
    assert set(train_in_ranks(values, tmp_path)) == {0}
    state = load_state(out / "step-000002")
    assert (state["step"], state["total"]) == (2, 2)
    assert state["tokens"] > 0
    assert [sorted(one) for one in state["rng"]] == [["cpu"], ["cpu"]]  # of every drafter rank
    saved = weights(out, 2)
    optimiser = state["optimiser"]
    for tensors in (optimiser["masters"], *zip(*map(moments_of, state_of(optimiser)), strict=True)):
        assert sum(t.numel() for t in tensors) == sum(t.numel() for t in saved.values())
        assert {t.dtype for t in tensors} == {torch.float32}
    assert {t.dtype for t in saved.values()} == {torch.bfloat16}
    provenance = json.loads((out / "step-000002" / "provenance.json").read_text())
    assert {"data", "target", "config", "versions"} <= set(provenance)


def state_of(optimiser: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
    return list(optimiser["adamw"]["state"].values())


def moments_of(one: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    assert float(one["step"]) == 2
    return one["exp_avg"], one["exp_avg_sq"]


def test_random_numbers_go_on_where_they_were() -> None:
    saved = rng_of_all(None)[0]
    first = torch.rand(3)
    set_rng(saved)
    assert torch.equal(torch.rand(3), first)


@pytest.mark.parametrize("schedule", ["constant", "wsd"])
def test_a_longer_run_is_the_run_that_would_have_been(
    inputs: Path, tmp_path: Path, schedule: str
) -> None:
    """12 steps at once, or 10 asked for, stopped after 8, and 12 asked for then."""
    common = {"schedule": schedule, "warmup": 0.1, "save_every": 4}  # one step of warm-up in both
    run(inputs, tmp_path / "whole", steps=12, **common)
    out = tmp_path / "longer"
    run(inputs, out, steps=10, **common)
    shutil.rmtree(out / "step-000010")  # as if stopped before
    (out / "train.json").unlink()
    run(inputs, out, steps=12, **common)
    assert same(out, tmp_path / "whole", 12)
    assert losses(out)[12] == losses(tmp_path / "whole")[12]


def test_a_rate_that_has_fallen_is_not_raised_again(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path / "out")
    with pytest.raises(DflashError, match=r"steps in all: 6 .* 9 now, but the rate has to fall"):
        run(inputs, tmp_path / "out", steps=9)


def test_a_cosine_has_its_length_from_the_start(inputs: Path, tmp_path: Path) -> None:
    run(inputs, tmp_path / "out", schedule="cosine")
    with pytest.raises(DflashError, match="cosine"):
        run(inputs, tmp_path / "out", schedule="cosine", steps=9)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"anchors_per_doc": 9}, "anchors_per_doc: 8 in the checkpoint, 9 now"),
        ({"batch_docs": 2}, "batch_docs"),
        ({"loss": "ce"}, "loss"),
        ({"taps": [0, 1, 2]}, "taps"),
        ({"num_taps": 2}, "num_taps: 3"),
        ({"mask_token": 126}, "mask_token"),
    ],
)
def test_changed_semantics_are_refused_by_name(
    inputs: Path, finished: Path, change: dict[str, Any], name: str
) -> None:
    with pytest.raises(DflashError, match=name):
        run(inputs, finished, **change)


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    run(inputs, out, steps=3)
    return out


def test_number_types_are_those_it_began_with_on_any_machine(
    inputs: Path, finished: Path, tmp_path: Path
) -> None:
    """`auto` is bfloat16 on a GPU: its checkpoint has masters, which fp32 training has not."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "train.json").unlink()
    path = out / "step-000003" / "provenance.json"
    facts = json.loads(path.read_text())
    assert (facts["dtype"], facts["config"]["dtype"]) == ("float32", "auto")
    path.write_text(json.dumps(facts | {"dtype": "bfloat16"}))
    with pytest.raises(DflashError, match="dtype: bfloat16 in the checkpoint, float32 now"):
        run(inputs, out, steps=3)
    assert plan(TrainConfig.from_json(options(inputs, out, steps=3, dtype="bfloat16"))).total == 3


def test_what_a_resume_changes_and_may_change_is_said(inputs: Path, finished: Path) -> None:
    url = "s3://bucket/run"
    config = TrainConfig.from_json(options(inputs, finished, steps=3, upload=url, eval_docs=2))
    assert {"eval_docs: 16 before, 2 now", f"upload: None before, {url} now"} <= {
        *plan(config).notes
    }


def test_scores_of_other_held_out_documents_are_not_compared(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    common = {"data": str(inputs / "held"), "eval_prompts": 0, "schedule": "constant"}
    run(inputs, out, steps=1, eval_docs=6, **common)
    path = out / "step-000001" / "provenance.json"
    facts = json.loads(path.read_text())
    facts["heldout"]["heldout_acceptance"] = 99.0
    path.write_text(json.dumps(facts))
    assert Path(run(inputs, out, steps=2, eval_docs=6, **common)["best"]).name == "step-000001"
    assert Path(run(inputs, out, steps=3, eval_docs=5, **common)["best"]).name == "step-000003"
    path.write_text("{torn")  # and one that is damaged keeps nobody from saving
    (out / "best").write_text("step-000001\n")
    assert Path(run(inputs, out, steps=4, eval_docs=5, **common)["best"]).name == "step-000004"


def test_provenance_that_says_nothing_is_told(inputs: Path, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "train.json").unlink()
    (out / "step-000003" / "provenance.json").write_text("{}")
    with pytest.raises(DflashError, match=r"provenance: it has no step, total, config"):
        run(inputs, out, steps=3)


def test_another_target_of_the_same_shape_is_refused(
    inputs: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(inputs / "target", tmp_path / "target")
    assert run(inputs, finished, steps=3, target=str(tmp_path / "target"))["step"] == 3
    other = tmp_path / "target" / "model.safetensors"
    data = bytearray(other.read_bytes())
    data[-8:] = bytes(8)
    other.write_bytes(data)
    with pytest.raises(DflashError, match="target is another"):
        run(inputs, finished, steps=4, schedule="wsd", target=str(tmp_path / "target"))


def test_interrupted_at_random_steps_is_uninterrupted(inputs: Path, tmp_path: Path) -> None:
    """Each time by another split of processes; the data goes on in order, the loss with it."""
    chance = random.Random(7)
    run(inputs, tmp_path / "whole", steps=12, save_every=1, keep=99)
    out = tmp_path / "cut"
    run(inputs, out, steps=12, save_every=1, keep=99)
    for split in ({"targets": 2}, {"targets": 1, "drafters": 2}, {"colocated": True}):
        step = chance.randrange(1, 12)
        for folder in out.glob("step-*"):
            if int(folder.name[5:]) > step:
                shutil.rmtree(folder)
        (out / "train.json").unlink()
        changes = {"steps": 12, "save_every": 1, "keep": 99, "colocated": False} | split
        assert set(train_in_ranks(options(inputs, out, **changes), tmp_path)) == {0}
        assert losses(out) == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
        for name, tensor in weights(tmp_path / "whole", 12).items():
            torch.testing.assert_close(weights(out, 12)[name], tensor, atol=1e-4, rtol=1e-3)


def test_killed_between_the_last_checkpoint_and_its_summary(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"steps": 4, "save_every": 2, "data": str(inputs / "held"), "eval_prompts": 0}
    whole = run(inputs, tmp_path / "whole", **changes)
    out = tmp_path / "cut"

    def dies(path: Path, summary: dict[str, Any]) -> None:
        if summary["step"] == 4:
            raise KeyboardInterrupt
        write_json(path, summary)

    with monkeypatch.context() as kill:
        kill.setattr(run_record, "write_json", dies)
        with pytest.raises(KeyboardInterrupt):
            run(inputs, out, **changes)
    assert json.loads((out / "train.json").read_text())["ended"] == "running"
    again = run(inputs, out, **changes)
    places = {"checkpoint", "best", "seconds", "config", "rates"}
    assert {name: again[name] for name in {*again} - places} == {
        name: whole[name] for name in {*whole} - places
    }
    assert [Path(again[name]).name for name in ("checkpoint", "best")] == [
        Path(whole[name]).name for name in ("checkpoint", "best")
    ]
    assert run(inputs, out, **changes) == again


def test_a_set_of_another_target_is_refused(inputs: Path, tmp_path: Path) -> None:
    smol = Path(__file__).parents[1] / "assets" / "smollm2"
    write_set(tmp_path / "set", seed=0)
    path = tmp_path / "set" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["tokenizer"] = {"fingerprint": "of another", "vocab_size": 9}
    path.write_text(json.dumps(manifest))
    target = tmp_path / "target"
    shutil.copytree(smol, target)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(inputs / "target" / name, target / name)
    with pytest.raises(InputInvalid, match="another target"):
        run(inputs, tmp_path / "out", data=str(tmp_path / "set"), target=str(target))
