"""Taps are the right layers' outputs, padding is safe, the target's own ends are used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash.errors import DflashError, InputInvalid
from dflash.target import StatesNotFinite, TargetTaps, load_target
from dflash.target_weights import TargetEnds, TargetWeights
from tests.support.tiny_targets import HIDDEN, LAYERS, VOCAB, save_tiny_target, tiny_target

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ["llama", "qwen3", "sliding", "hybrid"]


def ids(rows: int = 2, length: int = 20) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(4, VOCAB, (rows, length))


@pytest.mark.parametrize("kind", KINDS)
def test_tap_i_is_the_output_of_layer_i(kind: str) -> None:
    model = tiny_target(kind, scale=2.0)
    depth = model.config.num_hidden_layers
    taps = tuple(range(depth))
    states = TargetTaps(model, taps).states(ids(), torch.tensor([20, 20]))
    hidden = model(ids(), output_hidden_states=True).hidden_states
    for i in taps[:-1]:
        part = states[..., i * HIDDEN : (i + 1) * HIDDEN]
        torch.testing.assert_close(part, hidden[i + 1], atol=1e-5, rtol=1e-4)
    last = states[..., -HIDDEN:]  # HF's last entry is after the final norm, ours before
    normed = TargetTaps(model, taps).norm(last)
    torch.testing.assert_close(normed, hidden[-1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_own_norm_and_head_give_the_model_s_logits(kind: str) -> None:
    model = tiny_target(kind, scale=2.0)
    taps = TargetTaps(model, (model.config.num_hidden_layers - 1,))
    states = taps.states(ids(), torch.tensor([20, 20]))
    logits = taps.head(taps.norm(states))
    torch.testing.assert_close(logits, model(ids()).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_right_padding_changes_nothing_and_comes_back_as_zeros(kind: str) -> None:
    taps = TargetTaps(tiny_target(kind, scale=2.0), (0, 2))
    together = taps.states(ids(), torch.tensor([20, 11]))
    alone = taps.states(ids()[1:, :11], torch.tensor([11]))
    torch.testing.assert_close(together[1, :11], alone[0], atol=1e-4, rtol=1e-3)
    assert together[1, 11:].abs().max() == 0


def test_states_pair_with_their_own_token() -> None:
    """Changing token t changes state t and none before: a shift by one would show here."""
    taps = TargetTaps(tiny_target("llama"), (0, 3))
    changed = ids(1)
    changed[0, 9] = (changed[0, 9] + 1) % VOCAB
    length = torch.tensor([20])
    differs = (taps.states(ids(1), length) - taps.states(changed, length)).abs().amax(-1)[0] > 1e-6
    assert differs.nonzero()[0] == 9


def test_layers_after_the_last_tap_do_not_run() -> None:
    model = tiny_target("llama")
    ran = []
    for i, layer in enumerate(model.model.layers):
        layer.register_forward_hook(lambda *_, i=i: ran.append(i))
    TargetTaps(model, (1, 3)).states(ids(), torch.tensor([20, 20]))
    assert ran == [0, 1, 2, 3]
    ran.clear()
    model(ids())
    assert ran == list(range(LAYERS))  # and the hooks are gone again


def test_a_tap_out_of_range_is_refused() -> None:
    model = tiny_target("llama")
    TargetTaps(model, (LAYERS - 1,))
    with pytest.raises(DflashError, match=f"0..{LAYERS - 1}"):
        TargetTaps(model, (LAYERS,))


def test_a_state_that_is_not_finite_is_named() -> None:
    model = tiny_target("llama")
    model.model.layers[3].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(StatesNotFinite, match="layer 3"):
        TargetTaps(model, (1, 3)).states(ids(), torch.tensor([20, 20]))


@pytest.mark.parametrize("tied", [True, False])
def test_a_drafter_rank_s_ends_are_the_model_s(tmp_path: Path, tied: bool) -> None:
    folder = save_tiny_target(tmp_path / "target", "llama", tie_word_embeddings=tied)
    taps = TargetTaps(load_target(folder), (1,))
    ends = TargetEnds(TargetWeights(folder), torch.float32, "cpu")
    h = torch.randn(3, HIDDEN)
    assert torch.equal(ends.head(h), taps.head(h))
    assert torch.equal(ends.embed(ids(), 2.0), taps.embed(ids(), 2.0))


def test_a_head_s_bias_is_among_the_ends(tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path / "target", "llama", tie_word_embeddings=False)
    file = folder / "model.safetensors"
    bias = torch.randn(VOCAB)
    save_file(load_file(file) | {"lm_head.bias": bias}, file, metadata={"format": "pt"})
    ends = TargetEnds(TargetWeights(folder), torch.float32, "cpu")
    h = torch.randn(3, HIDDEN)
    torch.testing.assert_close(ends.head(h), h @ ends.head_weight.t() + bias)
    assert torch.equal(ends.head_bias, bias)


def test_want_of_memory_is_not_taken_for_other_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own forward would need more still."""

    def short(*_: object) -> bool:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("dflash.target.known", lambda _decoder: True)
    monkeypatch.setattr("dflash.target.agrees", short)
    with pytest.raises(torch.OutOfMemoryError):
        TargetTaps(tiny_target("llama"), (1,)).states(ids(), torch.tensor([20, 20]))


def test_a_folder_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(DflashError, match=r"config\.json"):
        load_target(tmp_path)


@pytest.mark.parametrize("damage", ["torn", "missing", "one of two torn"])
def test_weights_that_did_not_come_whole_are_named(tmp_path: Path, damage: str) -> None:
    folder = save_tiny_target(tmp_path / "target", "llama")
    whole = folder / "model.safetensors"
    names = list(load_file(whole))
    if damage == "torn":
        whole.write_bytes(whole.read_bytes()[:5])
    else:
        first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
        whole.rename(folder / first)
        weight_map = dict.fromkeys(names, first) | {names[-1]: second}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        if damage != "missing":
            (folder / second).write_bytes(b"\x10")
    with pytest.raises(InputInvalid, match="model.safetensors" if damage == "torn" else "00002"):
        TargetWeights(folder).get(names[-1])
    with pytest.raises(InputInvalid, match="target"):
        load_target(folder)


@pytest.mark.parametrize("shape", [None, (31, 64)])
def test_weights_that_would_be_drawn_at_random_are_refused(
    tmp_path: Path, shape: tuple[int, int] | None
) -> None:
    """Transformers fills them in and warns; a drafter of such a target learns noise."""
    save_tiny_target(tmp_path, "llama")
    file, name = tmp_path / "model.safetensors", "model.layers.2.self_attn.k_proj.weight"
    weights = load_file(file)
    del weights[name]
    save_file(weights | ({name: torch.zeros(shape)} if shape else {}), file, {"format": "pt"})
    with pytest.raises(InputInvalid, match=f"lack 1 of its weights, first {name}"):
        load_target(tmp_path)
