"""Wrong models, sets and checkpoints, as a user meets them: one message, an exit code, no output.

Wrong lines and files of completions are in test_sources.py.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
from safetensors.torch import load_file, save_file

from dflash.__main__ import main
from dflash.completions import CompletionStore
from tests.dflash.test_evaluate import row, tokenized
from tests.support.tiny_targets import save_tiny_drafter, save_tiny_target


@pytest.fixture(autouse=True)
def load_once(monkeypatch, load_tokenizer):
    for module in ("tokenize", "parts"):
        monkeypatch.setattr(
            f"dflash.{module}.TargetTokenizer",
            lambda path, *, fast=True: load_tokenizer(pathlib.Path(path)),
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    save_tiny_target(root / "target")
    save_tiny_drafter(root / "drafter")
    tokenized(root / "data", [row(f"p{n}", prompt=6 + n) for n in range(3)])
    return root


@pytest.fixture
def world(made, tmp_path):
    shutil.copytree(made, tmp_path / "w")
    return tmp_path / "w"


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def no_taps(world):
    edit(world / "drafter" / "config.json", lambda c: c["dflash_config"].pop("target_layer_ids"))


def taps_beyond(world):
    edit(
        world / "drafter" / "config.json",
        lambda c: c["dflash_config"].update(target_layer_ids=[1, 3, 40]),
    )


def another_shape(world):
    path = world / "drafter" / "model.safetensors"
    weights = load_file(path)
    weights["fc.weight"] = weights["fc.weight"][:, :-1].contiguous()
    save_file(weights, path)


def another_vocabulary(world):
    shutil.rmtree(world / "drafter")
    save_tiny_drafter(world / "drafter", vocab_size=200)


def torn_weights(world):
    path = world / "drafter" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def torn_config(world):
    (world / "drafter" / "config.json").write_text('{"block_size": ')


def foreign_tokens(world):
    shutil.rmtree(world / "data")
    tokenized(world / "data", [row("p0", prompt=6, top=5000)])


def half_a_shard(world):
    shard = next((world / "data").rglob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])


def no_set(world):
    shutil.rmtree(world / "data")


EVAL = {
    no_taps: "lacks target_layer_ids",
    taps_beyond: "taps [1, 3, 40] do not fit",
    another_shape: "fc.weight",
    another_vocabulary: "vocab",
    torn_weights: "annot read",
    torn_config: "cannot be read as the drafter's config",
    foreign_tokens: "the target has 128 embedding rows",
    half_a_shard: "the manifest says",
    no_set: "there is no tokenized set's manifest",
}


@pytest.mark.parametrize("damage", EVAL, ids=lambda damage: damage.__name__)
def test_eval(world, capsys, damage):
    damage(world)
    out = world / "report.json"
    words = ["eval", "--target", str(world / "target"), "--drafter", str(world / "drafter")]
    words += ["--data", str(world / "data"), "--max-new-tokens", "4", "--out", str(out)]
    assert main([*words, "--baselines", ""]) == 1
    said = capsys.readouterr().err
    assert EVAL[damage] in said
    assert "Traceback" not in said
    assert not out.exists()


@pytest.mark.parametrize(
    "damage", [no_taps, another_shape, torn_weights, torn_config], ids=lambda d: d.__name__
)
def test_export(world, capsys, damage):
    damage(world)
    words = ["export", "--checkpoint", str(world / "drafter"), "--out", str(world / "out")]
    assert main(words) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert not (world / "out").exists()


def completions(folder, **more):
    with CompletionStore(folder, settings={"model": "m"}, shard_rows=50) as store:
        for number in range(12):
            asked = [{"role": "user", "content": "q"}]
            store.add({"id": f"r{number}", "messages": asked, **more})
        store.finish(complete=True, failed=0)
    return folder


@pytest.mark.parametrize(
    ("row_keys", "message"),
    [
        ({"completion": "another text", "output_ids": [700, 701, 2]}, "is not the servers' token"),
        ({"completion": "x", "output_ids": [700, 60000]}, "token id 60000 is beyond the 49152"),
        ({"completion": "x", "output_ids": [700, -1]}, "is beyond the 49152"),
        ({"completion": "x", "output_ids": [700, 1 << 40]}, "is beyond the 49152"),
    ],
)
def test_tokenize_with_another_tokenizer(tmp_path, smol, capsys, row_keys, message):
    source = completions(tmp_path / "in", **row_keys)
    out = tmp_path / "out"
    words = ["--completions", str(source), "--tokenizer", str(smol.path), "--out", str(out)]
    assert main(["tokenize", *words]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert "Point --tokenizer at the folder" in said
    assert not list(out.rglob("*.arrow"))
    assert not (out / "manifest.json").exists()


def test_audit_of_a_line_that_is_none(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    good = {"id": "a", "messages": [{"role": "user", "content": "q"}], "completion": "x"}
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps(good) + "\n{torn\n")
    words = ["--completions", str(tmp_path / "in"), "--report", str(tmp_path / "report")]
    assert main(["audit", *words]) == 1
    assert "a.jsonl:2: no JSON" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()
