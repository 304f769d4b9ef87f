"""The fast tokenizer gives the ids of the original, or says that it does not."""

from __future__ import annotations

import functools
import json
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.tokenizer import TargetTokenizer
from tests.support.qwen3 import unpack_qwen3

ASSETS = pathlib.Path(__file__).parents[1] / "assets"
PROMPTS = pathlib.Path(__file__).parents[2] / "runbook" / "library" / "prompts"
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>")
# Combining marks, scripts that compose, odd spaces, emoji sequences, controls, pieces of specials.
POOLS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.text("aeo =<>|\u0301\u0308\u0323\u0338\u0327\u030a\u0316", max_size=30),
    st.text(
        "\u1100\u1161\u11a8\uac00\u0915\u093c\u0958\u0627\u0653\u09c7\u09be\u0b95\u0b82 ",
        max_size=30,
    ),
    st.text(" \t\r\n\u00a0\u0085\u2003\u2028\u3000\u200b\ufeffa1.", max_size=30),
    st.text("🙂👩👧\u200d\ufe0f🇩🇪'’sStTreVEll12٣½Ⅷſ", max_size=30),
    st.sampled_from(SPECIALS),
    st.sampled_from(["<|im_", "im_end|>", "<|", "|>", "<think", "\u0338"]),
)


@functools.cache
def qwen3(folder: pathlib.Path) -> TargetTokenizer:
    return TargetTokenizer(unpack_qwen3(folder))


@pytest.fixture(scope="module")
def real(tmp_path_factory, smol):
    return {"qwen3": qwen3(tmp_path_factory.mktemp("qwen3") / "model"), "smollm2": smol}


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_real_prompts_and_code_have_equal_ids(real, name):
    tokenizer = real[name]
    assert tokenizer.twin is not None, tokenizer.why_slow
    lines = (PROMPTS / "code-and-reasoning.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [*lines, pathlib.Path(__file__).read_text(encoding="utf-8"), "a" * 20_000, " " * 5_000]
    for text in texts:
        found = tokenizer.twin.encode(text, added=True)
        assert found is not None
        assert found.dtype == np.int32
        assert found.tolist() == tokenizer.encode_slowly(text)


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_any_text_has_equal_ids(real, name):
    tokenizer = real[name]
    answered = 0

    @settings(max_examples=400, deadline=None, database=None)
    @given(st.lists(POOLS, max_size=8).map("".join))
    def holds(text):
        nonlocal answered
        twin = tokenizer.twin
        for added, original in ((True, tokenizer.encode_slowly), (False, plain)):
            found = twin.encode(text, added=added)
            answered += found is not None
            assert found is None or found.tolist() == original(text)
        assert tokenizer.encode_completion(text).tolist() == tokenizer.encode_slowly(text)

    def plain(text):
        return tokenizer._plain.encode(text, add_special_tokens=False).ids

    holds()
    assert answered > 400  # a twin that never answers proves nothing


def changed(tmp_path, change):
    folder = tmp_path / "model"
    shutil.copytree(ASSETS / "smollm2", folder)
    value = json.loads((folder / "tokenizer.json").read_text())
    change(value)
    (folder / "tokenizer.json").write_text(json.dumps(value))
    return TargetTokenizer(folder)


def metaspace(value):
    value["pre_tokenizer"] = {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True,
    }  # fmt: skip


def lowercase(value):
    value["normalizer"] = {"type": "Lowercase"}


def greedy_token(value):
    value["added_tokens"][2]["lstrip"] = True


def digits(value):
    value["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, value["pre_tokenizer"]],
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (metaspace, "pre-tokenizer is Metaspace"),
        (lowercase, "normalizer is Lowercase"),
        (greedy_token, "takes its surroundings along"),
        (digits, r"pre-tokenizer is Digits \+ ByteLevel"),
    ],
)
def test_a_tokenizer_without_a_twin_says_why_and_works(tmp_path, change, reason):
    import re

    tokenizer = changed(tmp_path, change)
    assert tokenizer.twin is None
    assert re.search(reason, tokenizer.why_slow)
    assert tokenizer.encode_completion("Hello 123 World").tolist() == tokenizer.encode_slowly(
        "Hello 123 World"
    )


def test_a_twin_that_differs_is_not_used(tmp_path, monkeypatch):
    """The probes would show another pattern."""
    monkeypatch.setattr("dflash.twin.GPT2", r"\S+|\s+")
    tokenizer = TargetTokenizer(ASSETS / "smollm2")
    assert tokenizer.twin is None
    assert "other ids for" in tokenizer.why_slow


def test_bytes_without_a_token_are_left_to_the_original(smol):
    """SmolLM2 has no token for some bytes; Hugging Face drops them and merges what is around."""
    assert smol.twin.encode("a\x04b", added=True) is None
    assert smol.encode_completion("a\x04b").tolist() == smol.encode_slowly("a\x04b")


def unreachable(value):
    """A token that no merge makes: the original never gives it, and tiktoken would."""
    value["model"]["vocab"]["Ġzebracrossing"] = 49152


def test_a_token_without_a_merge_is_never_made(tmp_path):
    tokenizer = changed(tmp_path, unreachable)
    assert tokenizer.twin is not None
    text = "a zebracrossing"
    assert 49152 not in tokenizer.encode_completion(text)
    assert tokenizer.encode_completion(text).tolist() == tokenizer.encode_slowly(text)


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_every_kind_of_token_is_made_from_its_own_text(real, name):
    """tiktoken looks a whole word up first; merging must come to the same."""
    tokenizer = real[name]
    texts = [tokenizer.decode([number]) for number in range(300, tokenizer.vocab_size - 30, 29)]
    whole = [text for text in texts if "\ufffd" not in text]
    assert len(whole) > 1000
    for text in whole:
        found = tokenizer.twin.encode(text, added=False)
        assert found is not None
        assert found.tolist() == tokenizer._plain.encode(text, add_special_tokens=False).ids
