"""The z-lab config both ways, choice of taps and mask token, and the resume contract."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest

from dflash.config import (
    FULL,
    SLIDING,
    DrafterConfig,
    choose_mask_token,
    default_taps,
    read_rope_theta,
)
from dflash.errors import DflashError
from dflash.resume import ELSEWHERE, TOLD
from dflash.train_config import RESUME_CONTRACT, TrainConfig, contract_changes

QWEN = {
    "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 262144,
    "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [1]},
    "rope_theta": 1e4,
}  # fmt: skip


def qwen(**changes: object) -> DrafterConfig:
    options = {"num_layers": 5, "block_size": 16, "mask_token_id": 248070, **changes}
    return DrafterConfig.from_target_config({"text_config": QWEN}, **options)


def test_shape_of_a_multimodal_target_is_the_published_one() -> None:
    made = qwen(sliding_window=2048)
    assert made.target_layer_ids == (1, 16, 31, 46, 61)
    assert (made.num_heads, made.num_kv_heads, made.head_dim) == (32, 8, 128)
    assert made.layer_types == (SLIDING,) * 4 + (FULL,)
    assert made.rope_theta == 1e7  # not the stale flat key


def test_export_has_both_spellings_and_no_partial_rotary() -> None:
    made = qwen(sliding_window=2048).to_hf()
    assert made["block_size"] == made["dflash_config"]["block_size"] == 16
    assert made["rope_theta"] == made["rope_parameters"]["rope_theta"] == 1e7
    assert made["num_target_layers"] == 64
    assert made["dflash_config"]["sample_from_anchor"] is False
    assert "partial_rotary" not in str(made)
    assert "mrope" not in str(made)
    assert "is_causal" not in made


@pytest.mark.parametrize("is_causal", [None, True, False])
@pytest.mark.parametrize("window", [None, 512])
def test_config_survives_the_round_trip(is_causal: bool | None, window: int | None) -> None:
    made = qwen(sliding_window=window, is_causal=is_causal, final_logit_softcapping=30.0)
    assert DrafterConfig.from_hf(made.to_hf()) == made


@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id", "block_size"])
def test_a_guessable_value_is_refused(key: str) -> None:
    config = qwen().to_hf()
    config.pop(key, None)
    del config["dflash_config"][key]
    with pytest.raises(DflashError, match=key):
        DrafterConfig.from_hf(config)


def test_window_switched_off_is_refused_not_served_unwindowed() -> None:
    config = qwen(sliding_window=64).to_hf() | {"use_sliding_window": False}
    with pytest.raises(DflashError, match="sliding"):
        DrafterConfig.from_hf(config)


@pytest.mark.parametrize(
    "changes",
    [{"taps": (1, 64)}, {"taps": (3, 1)}, {"mask_token_id": 248320}, {"block_size": 1}],
)
def test_impossible_shapes_are_refused(changes: dict) -> None:
    with pytest.raises(DflashError):
        qwen(**changes)


def test_the_last_layer_is_a_valid_tap() -> None:
    assert qwen(taps=(1, 63)).target_layer_ids == (1, 63)


@pytest.mark.parametrize(
    ("depth", "count", "taps"),
    [(64, 5, (1, 16, 31, 46, 61)), (36, 5, (1, 9, 17, 25, 33)), (36, 1, (18,))],
)
def test_default_taps(depth: int, count: int, taps: tuple[int, ...]) -> None:
    assert default_taps(depth, count) == taps


def test_rope_per_layer_type() -> None:
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    assert read_rope_theta({"rope_parameters": nested}) == 1e6
    with pytest.raises(DflashError, match="rope_theta"):
        read_rope_theta({})


def test_mask_token_is_a_row_beyond_the_tokenizer_or_an_unused_special() -> None:
    tokenizer = {
        "model": {"vocab": {"a": 0, "b": 1}},
        "added_tokens": [{"id": i, "special": True} for i in (2, 3, 4)],
    }
    assert choose_mask_token(8, tokenizer, [2]) == 5
    assert choose_mask_token(5, tokenizer, [2]) == 4
    assert choose_mask_token(5, tokenizer, [2], in_data=[4]) == 3
    with pytest.raises(DflashError, match="mask"):
        choose_mask_token(5, tokenizer, [2, 3], in_data=[4])


def train_config(**changes: object) -> TrainConfig:
    return TrainConfig.from_json({"target": "t", "data": "d", "out": "o", **changes})


def test_train_config_survives_json_and_refuses_unknown_options() -> None:
    made = train_config(taps=[1, 2], betas=[0.9, 0.99])
    assert TrainConfig.from_json(made.to_json()) == made
    with pytest.raises(DflashError, match="learning_rate"):
        train_config(learning_rate=1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schedule": "step"}, "'step' is not one of wsd, cosine, constant"),
        ({"layers": 0}, "0 is below 1"),
        ({"micro_batches": 3, "drafters": 2}, "3 do not split evenly over 2"),
        ({"lr": math.nan}, "nan is not a number above zero"),
        ({"lr": -1.0}, "above zero"),
        ({"clip": math.inf}, "above zero"),
        ({"gamma": 0.0}, "above zero"),
        ({"epochs": 0.0}, "above zero"),
        ({"minutes": -1.0}, "above zero"),
        ({"warmup": 2.0}, "2.0 is not between 0 and 1"),
        ({"min_lr_ratio": 7.0}, "between 0 and 1"),
        ({"dpace_alpha": -0.1}, "between 0 and 1"),
        ({"weight_decay": -1.0}, "below zero"),
        ({"seed": -1}, "below zero"),
        ({"head_chunk_rows": 0}, "below 1"),
        ({"sliding_window": 0}, "below 1"),
        ({"betas": [0.9]}, "two numbers from 0 to below 1"),
        ({"betas": [0.9, 1.5]}, "two numbers"),
        ({"betas": 0.9}, "a list, each a number"),
        ({"taps": "1,2"}, "a list, each a whole number"),
        ({"lr": "6e-4"}, "'6e-4' is not a number (in YAML: 0.0006)"),
        ({"steps": "ten"}, "'ten' is not a whole number"),
        ({"steps": True}, "whole number"),
        ({"colocated": "yes"}, "true or false"),
        ({"split": None}, "None is not a text"),
        ({"upload": "elsewhere"}, "'elsewhere' is no s3://BUCKET/PREFIX"),
        ({"upload": "s3://"}, "BUCKET"),
    ],
)
def test_train_config_refuses_nonsense(changes: dict, says: str) -> None:
    with pytest.raises(DflashError, match=re.escape(says)) as caught:
        train_config(**changes)
    assert f"Cannot train with {next(iter(changes))}: " in caught.value.message


def test_contract_lets_topology_change_and_nothing_that_changes_the_run() -> None:
    saved = train_config().to_json()
    assert contract_changes(saved, train_config(targets=3, save_every=7)) == []
    assert contract_changes(saved, train_config(lr=1.0)) == [
        "lr: 0.0006 in the checkpoint, 1.0 now"
    ]
    for name in RESUME_CONTRACT:
        changes = contract_changes(saved | {name: "of another run"}, train_config())
        assert [change.partition(":")[0] for change in changes] == [name]


def test_of_every_option_it_is_decided_what_a_resume_does_with_it() -> None:
    decided = [*RESUME_CONTRACT, *TOLD, *ELSEWHERE]
    assert sorted(decided) == sorted(TrainConfig.__dataclass_fields__)


def test_configs_load_no_torch() -> None:
    modules = "dflash.config, dflash.train_config, dflash.train"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "False"
