"""`dflash tokenize` with real templates: masks, thinking, look-alikes, splits, resumption."""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.__main__ import main
from dflash.completions import CompletionStore
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.masks import fit, sample_of
from dflash.progress import Progress
from dflash.shards import TokenizedSet
from dflash.splits import Splits, hash_of, parse_shares
from dflash.tokenize import tokenize
from dflash.tokenizer import TargetTokenizer

ASSETS = pathlib.Path(__file__).parents[1] / "assets"
QWEN_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
QWEN_TOKENS += ["<think>", "</think>"]


@pytest.fixture(scope="session")
def smol():
    return loaded(ASSETS / "smollm2")


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    """Loading takes a second or more; nothing here changes a tokenizer's files."""
    monkeypatch.setattr("dflash.tokenize.TargetTokenizer", lambda path: loaded(pathlib.Path(path)))


@functools.cache
def loaded(path):
    return TargetTokenizer(path)


@pytest.fixture(scope="session")
def qwen(tmp_path_factory):
    """Qwen's real templates over SmolLM2's vocabulary, which has the same turn markers."""
    found = {}
    for name in ("qwen3", "qwen3_6", "qwen3_8"):
        folder = tmp_path_factory.mktemp(name) / "model"
        shutil.copytree(ASSETS / "smollm2", folder)
        shutil.copy(ASSETS / "chat-templates" / f"{name}.jinja", folder / "chat_template.jinja")
        value = json.loads((folder / "tokenizer.json").read_text())
        model = dict(value["added_tokens"][-1], special=False)
        value["added_tokens"] += [
            dict(model, id=49152 + number, content=content)
            for number, content in enumerate(QWEN_TOKENS)
        ]
        (folder / "tokenizer.json").write_text(json.dumps(value))
        found[name] = loaded(folder)
    return found


def user(text):
    return [{"role": "user", "content": text}]


def masked_text(sample, tokenizer):
    return tokenizer.decode(sample.prompt_ids), tokenizer.decode(sample.completion_ids)


def row(messages, completion, *, name="a", **more):
    return {"id": name, "messages": messages, "completion": completion, **more}


def test_plain_chat_from_text(smol):
    sample = sample_of(row(user("Hi 🙂"), "Hello, wörld!", finish_reason="stop"), smol, {})
    before, after = masked_text(sample, smol)
    assert before.endswith("<|im_start|>user\nHi 🙂<|im_end|>\n<|im_start|>assistant\n")
    assert after == "Hello, wörld!<|im_end|>"
    assert sample.completion_ids.count(smol.eos_token_id) == 1
    assert "end_token_added" in sample.notes


def test_exact_ids_win_over_text(smol):
    exact = row(user("x"), "whatever", output_ids=[5, 6, 2], input_ids=[1, 9], matched_stop=2)
    sample = sample_of(exact, smol, {})
    assert (sample.prompt_ids, sample.completion_ids) == ([1, 9], [5, 6, 2])
    assert {"prompt_exact", "completion_exact"} <= set(sample.notes)


def test_trimmed_stop_token_is_put_back(smol):
    sample = sample_of(row(user("x"), "", output_ids=[5, 6], matched_stop=2), smol, {})
    assert sample.completion_ids == [5, 6, 2]


def test_truncated_has_no_end_token(smol):
    sample = sample_of(row(user("x"), "half a sent", finish_reason="length"), smol, {})
    assert masked_text(sample, smol)[1] == "half a sent"
    assert "truncated" in sample.notes


def test_nothing_generated_is_an_error(smol):
    with pytest.raises(InputInvalid, match=r"row 'a' has no generated token.*all zeros"):
        sample_of(row(user("x"), "", finish_reason="length"), smol, {})


def test_qwen3_writes_the_think_tag_itself(qwen):
    text = "<think>\nwell\n</think>\n\nFour.<|im_end|>"
    sample = sample_of(row(user("2+2?"), text, finish_reason="stop"), qwen["qwen3"], {})
    before, after = masked_text(sample, qwen["qwen3"])
    assert before.endswith("<|im_start|>assistant\n")
    assert after == text
    assert "thinking_closed" in sample.notes


def test_qwen3_6_has_the_think_tag_in_the_prompt(qwen):
    text = "well\n</think>\n\nFour.<|im_end|>"
    sample = sample_of(row(user("2+2?"), text, finish_reason="stop"), qwen["qwen3_6"], {})
    before, after = masked_text(sample, qwen["qwen3_6"])
    assert before.endswith("<|im_start|>assistant\n<think>\n")
    assert after == text


def test_qwen3_6_tag_written_by_the_client_is_not_doubled(qwen):
    text = "<think>\nwell\n</think>\n\nFour."
    sample = sample_of(row(user("2+2?"), text, finish_reason="stop"), qwen["qwen3_6"], {})
    whole = qwen["qwen3_6"].decode(sample.prompt_ids + sample.completion_ids)
    assert whole.count("<think>") == 1
    assert whole.endswith("<think>\nwell\n</think>\n\nFour.<|im_end|>")


@pytest.mark.parametrize("name", ["qwen3", "qwen3_6"])
def test_thinking_off_leaves_the_empty_block_to_the_prompt(qwen, name):
    kwargs = {"enable_thinking": False}
    sample = sample_of(row(user("2+2?"), "Four.", finish_reason="stop"), qwen[name], kwargs)
    before, after = masked_text(sample, qwen[name])
    assert before.endswith("<think>\n\n</think>\n\n")
    assert after == "Four.<|im_end|>"
    assert "no_thinking_closed" in sample.notes


def test_empty_think_block_is_trained_only_where_it_was_written(qwen):
    text = "<think>\n\n</think>\n\nFour.<|im_end|>"
    sample = sample_of(row(user("2+2?"), text, finish_reason="stop"), qwen["qwen3"], {})
    assert masked_text(sample, qwen["qwen3"])[1] == text
    bare = sample_of(row(user("2+2?"), "Four.", finish_reason="stop"), qwen["qwen3"], {})
    assert masked_text(bare, qwen["qwen3"])[1] == "Four.<|im_end|>"


@pytest.mark.parametrize("name", ["qwen3", "qwen3_6", "qwen3_8"])
def test_multi_turn_trains_the_last_answer_only(qwen, name):
    messages = [
        *user("2+2?"),
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nFour."},
        *user("3+3?"),
    ]
    sample = sample_of(row(messages, "Six.", finish_reason="stop"), qwen[name], {})
    before, after = masked_text(sample, qwen[name])
    assert "Four." in before
    assert ("old" in before) == (name == "qwen3_8")  # the others drop earlier thinking
    assert after == "Six.<|im_end|>"


def test_tools_and_their_arguments(qwen):
    messages = [
        *user("Weather in Köln?"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Köln"}'}}],
        },
        {"role": "tool", "content": "sunny"},
    ]
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    for tokenizer in qwen.values():
        text = tokenizer.decode(tokenizer.encode_prompt(messages, tools))
        assert "Köln" in text
        assert "sunny" in text


@pytest.mark.parametrize("name", ["qwen3", "qwen3_6"])
@pytest.mark.parametrize("fake", ["<|im_end|>", "<|im_start|>", "<think>", "</think>"])
def test_lookalike_in_user_text_stays_text(qwen, name, fake):
    tokenizer = qwen[name]
    plain = tokenizer.encode_prompt(user("a b"))
    ids = tokenizer.encode_prompt(user(f"a{fake}b"))
    assert ids.count(tokenizer.added[fake]) == plain.count(tokenizer.added[fake])
    assert tokenizer.decode(ids) == tokenizer.decode(plain).replace("a b", f"a{fake}b")


def test_lookalike_in_system_and_tools_stays_text(qwen):
    messages = [{"role": "system", "content": "never say <|im_end|>"}, *user("x")]
    tools = [{"type": "function", "function": {"name": "f", "description": "<|im_start|>"}}]
    ids = qwen["qwen3"].encode_prompt(messages, tools)
    assert ids.count(qwen["qwen3"].added["<|im_end|>"]) == 2
    assert ids.count(qwen["qwen3"].added["<|im_start|>"]) == 3


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=60))
def test_any_text_comes_through_around_a_lookalike(text):
    tokenizer = loaded(ASSETS / "smollm2")
    ids = tokenizer.encode_prompt(user(f"{text}<|im_end|>{text}"))
    assert f"<|im_start|>user\n{text}<|im_end|>{text}<|im_end|>\n" in tokenizer.decode(ids)
    assert ids.count(tokenizer.eos_token_id) == 2


def test_half_an_emoji_does_not_stop_the_run(smol):
    assert "\ufffd" in smol.decode(smol.encode_prompt(user("cut \ud83d")))


def test_overlong(smol):
    sample = sample_of(row(user("x"), "one two three four five", finish_reason="stop"), smol, {})
    prompt = len(sample.prompt_ids)
    assert fit(sample, max_length=prompt + 2, overlong="drop") is None
    assert fit(sample, max_length=prompt, overlong="truncate") is None
    assert fit(sample, max_length=prompt + 2, overlong="keep") is sample
    cut = fit(sample, max_length=prompt + 2, overlong="truncate")
    assert cut is not None
    assert cut.completion_ids == sample.completion_ids[:2]
    assert "cut" in cut.notes


# The command


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
    from dflash import tokenize as module

    made = []
    real = module.make_part
    monkeypatch.setattr(module, "make_part", lambda *a: made.append(a[0].name) or real(*a))
    run(source, out)
    assert made == ["shard-00001.jsonl"]
    assert digests(out) == before


def test_killed_in_the_middle_leaves_no_manifest(tmp_path, monkeypatch):
    source, out = completions(tmp_path / "in", 30), tmp_path / "out"
    from dflash import tokenize as module

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
    with pytest.raises(InputInvalid, match="12 of 12 rows decode to another text"):
        run(source, tmp_path / "out")
    source = exact(tmp_path / "big", [700, 60000], "x")
    with pytest.raises(InputInvalid, match=r"token id 60000 is beyond the 49152"):
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
