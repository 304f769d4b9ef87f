"""`dflash tokenize`: the set it makes, its splits, resumption, other people's mistakes."""

from __future__ import annotations

import hashlib
import json
import pathlib

import numpy as np
import pytest

from dflash.__main__ import main
from dflash.completions import CompletionStore
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.progress import Progress
from dflash.shards import TokenizedSet
from dflash.splits import Splits, hash_of, parse_shares
from dflash.tokenize import tokenize
from dflash.tokenizer import TargetTokenizer

ASSETS = pathlib.Path(__file__).parents[1] / "assets"


@pytest.fixture(autouse=True)
def load_once(monkeypatch, load_tokenizer):
    """Nothing here changes a tokenizer's files."""
    for module in ("tokenize", "parts"):
        monkeypatch.setattr(
            f"dflash.{module}.TargetTokenizer",
            lambda path, *, fast=True: load_tokenizer(pathlib.Path(path)),
        )


def user(text):
    return [{"role": "user", "content": text}]


def row(messages, completion, *, name="a", **more):
    return {"id": name, "messages": messages, "completion": completion, **more}


def completions(folder, count, *, shard_rows=10, text="answer {}", **settings_):
    folder.mkdir(parents=True, exist_ok=True)
    with CompletionStore(folder, settings={"model": "m", **settings_}, shard_rows=shard_rows) as s:
        for n in range(count):
            s.add(row(user(f"q {n}"), text.format(n), name=f"r{n:03d}", finish_reason="stop"))
        s.finish(complete=True, failed=0)
    return folder


def run(source, out, **kwargs):
    kwargs.setdefault("tokenizer", ASSETS / "smollm2")
    return tokenize(completions=source, out=out, progress=Progress(), **kwargs)


def digests(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_command_makes_a_set_that_reads_back(tmp_path, smol, capsys):
    source = completions(tmp_path / "in", 40)
    words = ["--completions", str(source), "--tokenizer", str(ASSETS / "smollm2")]
    assert main(["tokenize", *words, "--out", str(tmp_path / "set")]) == 0
    assert "loss_tokens" in capsys.readouterr().err
    train, heldout = (TokenizedSet(tmp_path / "set", name) for name in ("train", "heldout"))
    assert len(train) + len(heldout) == 40
    assert len(heldout) >= 8
    names = {train.row(n).id for n in range(len(train))}
    assert not names & {heldout.row(n).id for n in range(len(heldout))}
    first = train.row(0)
    assert first.input_ids.dtype == np.int32
    assert first.loss_mask.dtype == np.uint8
    edge = int(first.loss_mask.argmax())
    assert smol.decode(first.input_ids[edge:].tolist()).startswith("answer ")
    assert first.loss_mask[edge:].all()
    assert not first.loss_mask[:edge].any()
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert manifest["splits"]["train"]["loss_tokens"] == int(train.loss_tokens.sum())
    assert manifest["tokenizer"]["fingerprint"] == smol.fingerprint
    assert manifest["counts"]["prompt_rendered"] == 40


@pytest.mark.slow  # two more interpreters with transformers in them
def test_same_input_same_bytes_any_number_of_workers(tmp_path):
    source = completions(tmp_path / "in", 25)
    run(source, tmp_path / "a")
    run(source, tmp_path / "b", workers=2)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_second_run_keeps_the_parts_and_makes_the_missing(tmp_path, monkeypatch):
    source, out = completions(tmp_path / "in", 30), tmp_path / "out"
    run(source, out)
    before = digests(out)
    (out / "train" / "shard-00001.arrow").write_bytes(b"torn")
    (out / "manifest.json").unlink()
    from dflash import part_workers as module

    made = []
    real = module.make_part
    monkeypatch.setattr(module, "make_part", lambda *a: made.append(a[0].name) or real(*a))
    run(source, out)
    assert made == ["shard-00001.jsonl"]
    assert digests(out) == before


def test_killed_in_the_middle_leaves_no_manifest(tmp_path, monkeypatch):
    source, out = completions(tmp_path / "in", 30), tmp_path / "out"
    from dflash import part_workers as module

    real = module.make_part

    def die_second(path, *rest):
        if path.name == "shard-00001.jsonl":
            raise KeyboardInterrupt
        return real(path, *rest)

    monkeypatch.setattr(module, "make_part", die_second)
    with pytest.raises(KeyboardInterrupt):
        run(source, out)
    with pytest.raises(InputInvalid, match="there is no tokenized set's manifest"):
        TokenizedSet(out)
    monkeypatch.undo()
    run(source, out)
    assert len(TokenizedSet(out)) + len(TokenizedSet(out, "heldout")) == 30


def test_another_recipe_makes_it_again(tmp_path):
    source, out = completions(tmp_path / "in", 30, text="word " * 40 + "{}"), tmp_path / "out"
    whole = run(source, out)
    short = run(source, out, max_length=60, overlong="truncate", shares={"train": 1.0})
    assert short["counts"]["cut"] == 30
    assert set(short["splits"]) == {"train"}
    assert TokenizedSet(out).lengths.max() == 60
    assert not (out / "heldout").exists()
    assert short["splits"]["train"]["tokens"] < whole["splits"]["train"]["tokens"] * 1.2


def test_overlong_rows_are_counted_and_an_empty_split_refused(tmp_path):
    source = completions(tmp_path / "in", 30)
    with pytest.raises(DflashError, match="30 rows came in, 30 were longer than 5"):
        run(source, tmp_path / "out", max_length=5)


def test_thinking_of_the_run_reaches_the_template(tmp_path, qwen):
    source = completions(tmp_path / "in", 12, thinking="off")
    manifest = run(source, tmp_path / "out", tokenizer=qwen["qwen3_6"].path)
    assert manifest["template_kwargs"] == {"enable_thinking": False}
    first = TokenizedSet(tmp_path / "out").row(0)
    assert "<think>\n\n</think>" in qwen["qwen3_6"].decode(first.input_ids.tolist())


def exact(folder, ids, text):
    with CompletionStore(folder, settings={"model": "m"}, shard_rows=50) as store:
        for n in range(12):
            name = f"r{n}"
            more = {"output_ids": ids, "input_ids": [1, 5], "matched_stop": ids[-1]}
            store.add(row(user("q"), text, name=name, finish_reason="stop", **more))
        store.finish(complete=True, failed=0)
    return folder


def test_wrong_tokenizer_is_noticed(tmp_path):
    source = exact(tmp_path / "in", [700, 701, 2], "quite another text")
    with pytest.raises(DflashError, match="12 of 12 rows decode to another text"):
        run(source, tmp_path / "out")
    source = exact(tmp_path / "big", [700, 60000], "x")
    with pytest.raises(DflashError, match=r"token id 60000 is beyond the 49152"):
        run(source, tmp_path / "out")


def test_damaged_input(tmp_path, capsys):
    source = completions(tmp_path / "in", 20)
    shard = source / "shard-00001.jsonl"
    shard.write_bytes(shard.read_bytes()[:-5])
    words = ["--completions", str(source), "--tokenizer", str(ASSETS / "smollm2")]
    assert main(["tokenize", *words, "--out", str(tmp_path / "out")]) == 1
    text = capsys.readouterr().err
    assert "shard-00001.jsonl has" in text
    assert "Run the same `dflash generate` again" in text


def test_not_a_model_folder(tmp_path):
    with pytest.raises(InputInvalid, match=r"holds no tokenizer\.json"):
        TargetTokenizer(tmp_path)


def test_splits_follow_the_id_alone():
    ids = [f"row {n}" for n in range(4000)]
    shares = {"train": 0.8, "heldout": 0.1, "test": 0.1}
    splits = Splits.over(ids, shares, floor=8)
    found = [splits.of(row_id) for row_id in ids]
    for name, share in shares.items():
        assert found.count(name) == pytest.approx(4000 * share, rel=0.25)
    grown = Splits.over([*ids, *(f"new {n}" for n in range(100))], shares, floor=8)
    assert [grown.of(row_id) for row_id in ids] == found


@pytest.mark.parametrize("count", [4, 5, 16, 40, 100])
def test_splits_have_a_floor(count):
    ids = [f"{n}" for n in range(count)]
    splits = Splits.over(ids, {"train": 0.98, "a": 0.01, "b": 0.01}, floor=5)
    found = [splits.of(row_id) for row_id in ids]
    floor = min(5, count // 8)
    assert found.count("a") >= floor
    assert found.count("b") >= floor
    assert 0 <= hash_of("x") < 1


@pytest.mark.parametrize("text", ["train", "train=0.5", "train=2,x=-1", "a b=1", "parts=1"])
def test_split_words_that_make_no_sense(text):
    with pytest.raises(UsageError):
        parse_shares(text)
