"""Held-out scores during training: right, harmless, and the best checkpoint stays."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.bench import Bench, BenchSpec
from dflash.run_plan import plan
from dflash.train import train
from dflash.train_config import TrainConfig
from dflash.validation import HeldOut
from tests.support.ranks import train_in_ranks
from tests.support.tiny_runs import events, losses, make_inputs, options, row, write_rows
from tests.support.tiny_targets import tiny_target

BY_HEART = 80


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def run(inputs: Path, out: Path, **changes: Any) -> dict[str, Any]:
    values = options(inputs, out, data=str(inputs / "held"), eval_tokens=12, **changes)
    return train(TrainConfig.from_json(values))


def scores(out: Path) -> dict[int, dict[str, Any]]:
    return {e["done"]: e["metrics"] for e in events(out) if e["message"] == "held-out"}


@pytest.fixture(scope="module")
def scored(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("scored") / "out"
    return out, run(inputs, out)


def test_every_checkpoint_is_scored_without_changing_what_is_trained(
    inputs: Path, scored: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out, summary = scored
    assert sorted(scores(out)) == [3, 6]
    assert summary["heldout_acceptance"] == scores(out)[6]["heldout_acceptance"]
    assert len(summary["heldout"]["heldout_slot_accuracy"]) == 3
    run(inputs, tmp_path / "out", eval_docs=0)
    assert scores(tmp_path / "out") == {}
    assert losses(tmp_path / "out") == losses(out)


def test_other_splits_of_processes_score_the_same(
    inputs: Path, scored: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    changes = {"colocated": False, "targets": 2, "drafters": 2}
    values = options(inputs, out, data=str(inputs / "held"), eval_tokens=12, **changes)
    assert set(train_in_ranks(values, tmp_path)) == {0}
    for step, expected in scores(scored[0]).items():
        for name, value in expected.items():
            assert scores(out)[step][name] == pytest.approx(value, rel=1e-3), name


@pytest.mark.parametrize("steps", [20, BY_HEART])
def test_eight_samples_by_heart_and_walking_counts_as_decoding_does(
    inputs: Path, tmp_path: Path, steps: int
) -> None:
    """Half learned, the rounds are those of real decoding; wholly, every round is a whole block."""
    tokens = 25  # one with the prompt, then six whole blocks of four
    target = tmp_path / "target"
    model = tiny_target("llama", scale=6.0, tie_word_embeddings=False)
    model.save_pretrained(target)
    shutil.copy(inputs / "target" / "tokenizer.json", target)
    prompts = torch.randint(4, 104, (8, 6), generator=torch.Generator().manual_seed(0))
    texts = model.generate(prompts, max_new_tokens=tokens, do_sample=False, eos_token_id=None)
    assert len(texts[:, 6:].unique()) > 40  # not one word over and over
    rows = [row(str(i), text.numpy()) for i, text in enumerate(texts)]
    write_rows(tmp_path / "own", rows, rows)  # its own words, by heart: some drafts must hold
    out = tmp_path / "out"
    changes = {"anchors_per_doc": 32, "batch_docs": 8, "micro_batches": 1, "save_every": steps,
               "target": str(target), "data": str(tmp_path / "own"), "eval_prompts": 8}  # fmt: skip
    values = options(inputs, out, eval_tokens=tokens, steps=steps, **changes)
    train(TrainConfig.from_json(values))
    found = scores(out)[steps]["heldout_greedy_acceptance"]
    config = TrainConfig.from_json(values)
    held = HeldOut(config, plan(config))
    bench = Bench(
        BenchSpec(
            target=config.target, drafter=str(out / f"step-{steps:06d}"),
            methods=("plain", "trained"),
            dtype="float32", device="cpu", threads=1, max_new_tokens=tokens, stop_ids=(),
            temperature=0, top_p=1.0, top_k=0, seed=0,
        )
    )  # fmt: skip
    produced = rounds = 0
    for number, prompt in enumerate(held.prompts):
        record = bench.evaluate(str(number), prompt)["methods"]["trained"]
        produced += sum(made for _proposed, _accepted, made in record["rounds"])
        rounds += len(record["rounds"])
    assert rounds > 4
    if steps == BY_HEART:
        assert found == 4  # the block size
    else:
        assert 1.05 < found < 4
    assert found == pytest.approx(produced / rounds, rel=1e-6)


def test_the_best_checkpoint_outlives_newer_ones(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = run(inputs, out, steps=12, save_every=3, keep=1, lr=3e-3, schedule="constant")
    by_step = {step: found["heldout_acceptance"] for step, found in scores(out).items()}
    best = max(by_step, key=lambda step: (by_step[step], -step))
    assert (out / "best").read_text().strip() == f"step-{best:06d}"
    kept = {path.name for path in out.glob("step-*")}
    assert kept == {f"step-{best:06d}", "step-000012"}
    assert Path(summary["best"]).name == f"step-{best:06d}"
