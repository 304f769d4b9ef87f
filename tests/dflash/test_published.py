"""Starting from a published drafter: z-lab's layout, speculators' layout, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash.__main__ import main
from dflash.drafter import load_drafter
from tests.support.oracles import oracle_python
from tests.support.tiny_targets import save_tiny_drafter, save_tiny_target, tiny_drafter_config

SLIDING = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_tiny_target(tmp_path_factory.mktemp("target"))


def speculators_folder(folder, *, shape=None, **changes):
    """As `speculators` 0.9 writes one: taps one higher, the target's tensors carried along."""
    source = save_tiny_drafter(folder / "source", **(shape or {}))
    hf = json.loads((source / "config.json").read_text())
    nested, taps = hf.pop("dflash_config"), None
    taps = [tap + 1 for tap in nested["target_layer_ids"]]
    layer = {
        k: v for k, v in hf.items() if k not in ("architectures", "block_size", "rms_norm_eps")
    }
    config = {
        "speculators_model_type": "dflash", "architectures": ["DFlashSpeculator"],
        "aux_hidden_state_layer_ids": taps, "block_size": hf["block_size"],
        "mask_token_id": nested["mask_token_id"], "draft_vocab_size": hf["vocab_size"],
        "transformer_layer_config": layer, "sliding_window_non_causal": False,
    }  # fmt: skip
    out = folder / "published"
    out.mkdir()
    kept = {k: v for k, v in (config | changes).items() if v is not None}
    (out / "config.json").write_text(json.dumps(kept))
    weights = load_file(source / "model.safetensors")
    extra = {"verifier_norm.weight": torch.ones(64), "lm_head.weight": torch.ones(128, 64)}
    save_file(weights | extra, out / "model.safetensors")
    return source, out


def adopt(published, target, out):
    words = ["--drafter", str(published), "--target", str(target), "--out", str(out)]
    return main(["import", *words])


def same(one, other):
    (a, shape), (b, found) = load_drafter(one), load_drafter(other)
    assert shape == found
    for name, tensor in a.state_dict().items():
        torch.testing.assert_close(b.state_dict()[name], tensor.bfloat16().float(), msg=name)


@pytest.mark.parametrize("shape", [{}, SLIDING])
def test_speculators_layout(tmp_path, target, shape, capsys):
    source, published = speculators_folder(tmp_path, shape=shape)
    assert adopt(published, target, tmp_path / "start") == 0
    same(source, tmp_path / "start")
    assert "taps 1, 3, 6" in capsys.readouterr().err


def test_a_window_that_is_not_causal_is_kept(tmp_path, target):
    _, published = speculators_folder(tmp_path, shape=SLIDING, sliding_window_non_causal=True)
    assert adopt(published, target, tmp_path / "start") == 0
    assert load_drafter(tmp_path / "start")[1].is_causal is False


@pytest.mark.parametrize("pieces", [1, 2])
def test_z_lab_layout_in_one_file_or_more(tmp_path, target, pieces):
    source = save_tiny_drafter(tmp_path / "z-lab")
    published = tmp_path / "published"
    shutil.copytree(source, published)
    if pieces == 2:
        weights = load_file(published / "model.safetensors")
        names = sorted(weights)
        (published / "model.safetensors").unlink()
        halves = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
        for name, half in halves.items():
            save_file({f"model.{n}": weights[n] for n in half}, published / name)
        index = {f"model.{n}": name for name, half in halves.items() for n in half}
        (published / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert adopt(published, target, tmp_path / "start") == 0
    same(source, tmp_path / "start")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aux_hidden_state_layer_ids": None}, "has no aux_hidden_state_layer_ids"),
        ({"mask_token_id": None}, "has no mask_token_id"),
        ({"draft_vocab_size": 32}, "drafts 32 of the 128 tokens"),
        ({"sample_from_anchor": True}, "each slot one token later"),
        ({"speculators_model_type": "eagle3"}, "holds an eagle3 speculator"),
        ({"aux_hidden_state_layer_ids": [2, 4]}, "fc.weight is (64, 192), (64, 128) is needed"),
        ({"aux_hidden_state_layer_ids": [2, 4, 99]}, "the target has layers 0..7"),
        ({"transformer_layer_config": None}, "has no transformer_layer_config"),
    ],
)
def test_what_would_be_trained_on_wrongly_is_refused(tmp_path, target, capsys, changes, message):
    _, published = speculators_folder(tmp_path, **changes)
    assert adopt(published, target, tmp_path / "start") == 1
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "start").exists()


def test_another_target_and_missing_weights(tmp_path, target, capsys):
    _, published = speculators_folder(tmp_path)
    other = save_tiny_target(tmp_path / "other", hidden_size=32)
    assert adopt(published, other, tmp_path / "start") == 1
    assert "was not made for" in capsys.readouterr().err
    weights = load_file(published / "model.safetensors")
    weights.pop("layers.1.self_attn.k_norm.weight")
    save_file(weights, published / "model.safetensors")
    assert adopt(published, target, tmp_path / "start") == 1
    assert "layers.1.self_attn.k_norm.weight is missing" in capsys.readouterr().err
    (published / "model.safetensors").write_bytes(b"torn")
    assert adopt(published, target, tmp_path / "start") == 1
    assert "cannot read" in capsys.readouterr().err
    (tmp_path / "start").mkdir()
    assert adopt(published, target, tmp_path / "start") == 1
    assert "is already there" in capsys.readouterr().err


CONVERT = """
import sys
from speculators.convert.dflash import DFlashConverter
assert sys.prefix in sys.modules["speculators"].__file__
DFlashConverter().convert(sys.argv[1], sys.argv[2], sys.argv[3], validate=False)
"""


def test_what_speculators_own_converter_writes_comes_back(tmp_path, target):
    source = save_tiny_drafter(tmp_path / "z-lab", **SLIDING)
    words = [str(source), str(tmp_path / "converted"), str(target)]
    done = subprocess.run(
        [oracle_python(), "-I", "-c", CONVERT, *words], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert adopt(tmp_path / "converted", target, tmp_path / "start") == 0
    same(source, tmp_path / "start")
    assert load_drafter(tmp_path / "start")[1] == tiny_drafter_config(**SLIDING)
