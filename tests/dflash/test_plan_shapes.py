"""Parameters and FLOPs against published counts, measured rates and the reference's estimates."""

from __future__ import annotations

import json
import pathlib

import pytest

from dflash.config import DrafterConfig
from dflash.errors import DflashError
from dflash.plan_shapes import (
    TargetShape,
    drafter_flops,
    drafter_parameters,
    mean_seen,
)

ASSETS = pathlib.Path(__file__).parents[1] / "assets"
QWEN27B = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
        "head_dim": 256, "vocab_size": 248320, "rope_parameters": {"rope_theta": 1e7},
        "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    },
}  # fmt: skip
QWEN8B = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151936, "rope_theta": 1e6, "tie_word_embeddings": False,
}  # fmt: skip


def target(config=QWEN27B):
    return TargetShape.from_config(config, "config.json")


def drafter(**changes):
    options = {"num_layers": 5, "block_size": 16, "mask_token_id": 0, "sliding_window": 2048}
    return DrafterConfig.from_target_config(QWEN27B, **(options | changes))


def without(name, config=QWEN27B):
    text = {k: v for k, v in config["text_config"].items() if k != name}
    return config | {"text_config": text}


def test_parameters_are_the_published_ones():
    smollm = json.loads((ASSETS / "smollm2" / "config.json").read_text())
    assert target(smollm).parameters == 134_515_008
    assert target(QWEN8B).parameters == 8_190_735_360
    assert target().parameters == pytest.approx(26.9e9, rel=1e-3)
    assert drafter_parameters(drafter()) == pytest.approx(1.730e9, rel=1e-3)


def test_hybrid_layers_are_read_by_interval_or_by_name():
    by_interval = target()
    named = json.loads(json.dumps(QWEN27B))
    named["text_config"]["layer_types"] = list(by_interval.layer_types)
    assert by_interval.layer_types.count("linear_attention") == 48
    assert target(named) == by_interval
    state = by_interval.linear
    assert 48 * state.value_heads * state.key_dim * state.value_dim * 4 == pytest.approx(
        151e6, rel=1e-3
    )


def test_the_estimates_of_the_reference_come_out():
    """S=4096, N=512, B=16: target ~221 TFLOP, drafter ~78 + ~5 + ~42, +21 with logits again."""
    assert target().forward_flops(4096) == pytest.approx(221e12, rel=0.05)
    found = drafter_flops(drafter(), 4096, 512)
    assert found.layers == pytest.approx(78e12, rel=0.05)
    assert found.head == pytest.approx(42e12, rel=0.05)
    assert found.total == pytest.approx(125e12, rel=0.05)
    again = drafter_flops(drafter(), 4096, 512, recompute_logits=True).total
    assert again == pytest.approx(146e12, rel=0.05)
    assert again - found.total == pytest.approx(21e12, rel=0.05)


@pytest.mark.parametrize(("anchors", "floor_s"), [(512, 0.653), (128, 0.172)])
def test_a_measured_floor_of_four_documents_agrees(anchors, floor_s):
    found = 4 * drafter_flops(drafter(), 2048, anchors).total
    assert found == pytest.approx(floor_s * 750e12, rel=0.02)


def test_a_measured_target_rate_agrees():
    """11,200 tokens/s at 528 TFLOP/s, stopping after the last tap."""
    one = target().forward_flops(2048, layers=62, head=False) / 2048
    assert one * 11_200 == pytest.approx(528e12, rel=0.02)


def test_stopping_after_the_last_tap_costs_less():
    shape = target()
    whole = shape.forward_flops(4096, head=False)
    assert 1 - shape.forward_flops(4096, layers=62, head=False) / whole == pytest.approx(
        2 / 64, abs=0.005
    )


def test_a_window_bounds_what_is_seen():
    assert mean_seen(4096, None) == mean_seen(4096, 8192) == 2048
    assert mean_seen(4096, 2048) == 1536
    exact = sum(min(a, 16) for a in range(64)) / 64
    assert mean_seen(64, 16) == pytest.approx(exact, abs=0.5)


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "linear_num_value_heads"])
def test_a_missing_field_is_named(name):
    with pytest.raises(DflashError, match=rf"config.json lacks {name}") as caught:
        target(without(name))
    assert "config.json" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": 128}, "mixture of experts"),
        ({"hidden_size": "wide"}, "hidden_size must be a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 64"),
        ({"layer_types": ["mamba"] * 64}, "mamba"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes, words):
    with pytest.raises(DflashError, match=words):
        target({"text_config": QWEN27B["text_config"] | changes})
