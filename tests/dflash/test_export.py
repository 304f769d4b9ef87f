"""An export is what engines load: whole or not there, and never with something left to guess."""

from __future__ import annotations

import json

import pytest
import torch

from dflash import engines
from dflash.drafter import load_drafter
from dflash.errors import DflashError, InputInvalid
from dflash.export import broken_files, export, step_folder
from dflash.files import sha256_file
from dflash.progress import Progress
from tests.support.tiny_targets import save_tiny_drafter, tiny_drafter_config

QUIET = Progress()


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture
def checkpoint(tmp_path):
    return save_tiny_drafter(tmp_path / "run" / "step-000002")


def test_round_trip(checkpoint, tmp_path):
    manifest = export(checkpoint, tmp_path / "out", dtype="float32", progress=QUIET)
    before, config = load_drafter(checkpoint)
    after, read = load_drafter(tmp_path / "out")
    assert read == config
    for name, tensor in before.state_dict().items():
        assert torch.equal(tensor, after.state_dict()[name]), name
    assert [f["path"] for f in manifest["files"]] == ["config.json", "model.safetensors"]
    assert broken_files(tmp_path / "out", manifest) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "run"], "nothing stays aside"


def test_weights_are_bfloat16_unless_asked(checkpoint, tmp_path):
    from safetensors.torch import load_file

    export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    layers = tiny_drafter_config().num_layers
    assert len(tensors) == 11 * layers + 3
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_config_has_both_places_of_what_engines_read(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    hf = json.loads((tmp_path / "out" / "config.json").read_text())
    assert hf["block_size"] == hf["dflash_config"]["block_size"] == 4
    assert hf["rope_theta"] == hf["rope_parameters"]["rope_theta"]
    assert hf["num_target_layers"] == 8
    assert "partial_rotary_factor" not in json.dumps(hf)
    assert "is_causal" not in hf, "the default must not be spelled out, mixed layers need it absent"


def test_latest_of_a_training_folder(checkpoint, tmp_path):
    (tmp_path / "run" / "latest").write_text("step-000002\n")
    export(tmp_path / "run", tmp_path / "out", dtype="bfloat16", progress=QUIET)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    (tmp_path / "run" / "latest").write_text("step-000009\n")
    with pytest.raises(InputInvalid, match="step-000009"):
        export(tmp_path / "run", tmp_path / "other", dtype="bfloat16", progress=QUIET)


def test_best_of_a_training_folder(checkpoint, tmp_path):
    """What `best` names is exported, whatever is newer."""
    (tmp_path / "run" / "latest").write_text("step-000009\n")
    (tmp_path / "run" / "best").write_text("step-000002\n")
    export(tmp_path / "run" / "best", tmp_path / "out", dtype="bfloat16", progress=QUIET)
    source = json.loads((tmp_path / "out" / "manifest.json").read_text())["source"]
    assert source["weights_sha256"] == sha256_file(checkpoint / "model.safetensors")
    assert step_folder(tmp_path / "run" / "best") == checkpoint


def test_again_changes_nothing_and_a_damaged_export_is_replaced(checkpoint, tmp_path):
    out = tmp_path / "out"
    export(checkpoint, out, dtype="bfloat16", progress=QUIET)
    stamp = (out / "model.safetensors").stat().st_mtime_ns
    export(checkpoint, out, dtype="bfloat16", progress=QUIET)
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp
    (out / "model.safetensors").write_bytes(b"torn")
    manifest = export(checkpoint, out, dtype="bfloat16", progress=QUIET)
    assert broken_files(out, manifest) == []


def test_a_newer_checkpoint_replaces_the_export(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    newer = save_tiny_drafter(tmp_path / "newer", seed=9)
    export(newer, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    found, _ = load_drafter(tmp_path / "out")
    wanted, _ = load_drafter(newer)
    assert torch.equal(found.fc.weight, wanted.fc.weight.bfloat16().float())


def test_a_killed_export_leaves_only_an_aside_folder_that_the_next_one_removes(
    checkpoint, tmp_path, monkeypatch
):
    import dflash.export

    monkeypatch.setattr(dflash.export, "_put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "run"]


def test_a_foreign_folder_is_not_replaced(checkpoint, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(DflashError, match="no export of ours"):
        export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: c["dflash_config"].pop("target_layer_ids"), "names no taps"),
        (lambda c: c["dflash_config"].pop("mask_token_id"), "mask_token_id"),
        (lambda c: c.pop("num_target_layers"), "num_target_layers"),
        (lambda c: c.update(intermediate_size=32), "gate_proj|down_proj|up_proj"),
    ],
)
def test_a_config_that_leaves_something_to_guess_is_refused(checkpoint, tmp_path, damage, message):
    edit(checkpoint / "config.json", damage)
    with pytest.raises(DflashError, match=message):
        export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    assert not (tmp_path / "out").exists()


def test_missing_or_poisoned_weights_are_refused(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    with pytest.raises(InputInvalid, match="no checkpoint"):
        export(tmp_path / "nowhere", tmp_path / "out", dtype="bfloat16", progress=QUIET)
    weights = load_file(checkpoint / "model.safetensors")
    weights["norm.weight"][3] = float("nan")
    save_file(weights, checkpoint / "model.safetensors")
    with pytest.raises(DflashError, match=r"norm.weight .* NaN"):
        export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(InputInvalid, match="there is no"):
        export(checkpoint, tmp_path / "out", dtype="bfloat16", progress=QUIET)


MIXED = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 6}


@pytest.mark.parametrize("shape", [{}, MIXED, MIXED | {"is_causal": False}, {"is_causal": True}])
def test_every_engine_reads_what_was_trained(shape):
    config = tiny_drafter_config(**shape)
    hf = config.to_hf()
    assert engines.layout_problems(hf) == []
    for name in engines.ENGINES:
        assert engines.differences(name, hf, config) == [], name


@pytest.mark.parametrize(
    ("damage", "who"),
    [
        # The reports behind these cost somebody a training run each.
        (lambda c: c.update(partial_rotary_factor=0.25), {"sglang", "vllm"}),
        (lambda c: c["dflash_config"].pop("target_layer_ids"),
         {"official", "sglang", "vllm", "llama.cpp"}),
        (lambda c: c.update(use_sliding_window=False), {"official", "vllm", "llama.cpp"}),
        (lambda c: c.update(sliding_window=None), {"official", "sglang", "vllm", "llama.cpp"}),
        (lambda c: c.pop("num_target_layers"), {"official"}),
        (lambda c: c["rope_parameters"].update(rope_theta=1e6),
         {"official", "sglang", "vllm", "llama.cpp"}),
        (lambda c: c["dflash_config"].update(block_size=16), {"official", "sglang", "vllm"}),
        (lambda c: c["rope_parameters"].update(mrope_section=[1, 1, 1]), {"vllm"}),
        (lambda c: c.update(is_causal=True), {"official", "sglang", "vllm", "llama.cpp"}),
    ],
)  # fmt: skip
def test_a_misread_config_is_named_per_engine(damage, who):
    config = tiny_drafter_config(**MIXED)
    hf = json.loads(json.dumps(config.to_hf()))
    damage(hf)
    found = {name for name in engines.ENGINES if engines.differences(name, hf, config)}
    assert found == who
