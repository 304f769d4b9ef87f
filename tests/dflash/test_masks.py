"""Prompts and loss masks with real templates: thinking, turns, tools, look-alikes, odd text."""

from __future__ import annotations

import functools
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import InputInvalid
from dflash.masks import fit, sample_of
from dflash.tokenizer import TargetTokenizer

ASSETS = pathlib.Path(__file__).parents[1] / "assets"


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
    assert sample.completion_ids.tolist().count(smol.eos_token_id) == 1
    assert "end_token_added" in sample.notes


def test_exact_ids_win_over_text(smol):
    exact = row(user("x"), "whatever", output_ids=[5, 6, 2], input_ids=[1, 9], matched_stop=2)
    sample = sample_of(exact, smol, {})
    assert [*sample.prompt_ids, -1, *sample.completion_ids] == [1, 9, -1, 5, 6, 2]
    assert {"prompt_exact", "completion_exact"} <= set(sample.notes)


def test_trimmed_stop_token_is_put_back(smol):
    sample = sample_of(row(user("x"), "", output_ids=[5, 6], matched_stop=2), smol, {})
    assert sample.completion_ids.tolist() == [5, 6, 2]


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
    whole = qwen["qwen3_6"].decode([*sample.prompt_ids, *sample.completion_ids])
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
    plain = tokenizer.encode_prompt(user("a b")).tolist()
    ids = tokenizer.encode_prompt(user(f"a{fake}b")).tolist()
    assert ids.count(tokenizer.added[fake]) == plain.count(tokenizer.added[fake])
    assert tokenizer.decode(ids) == tokenizer.decode(plain).replace("a b", f"a{fake}b")


def test_lookalike_in_system_and_tools_stays_text(qwen):
    messages = [{"role": "system", "content": "never say <|im_end|>"}, *user("x")]
    tools = [{"type": "function", "function": {"name": "f", "description": "<|im_start|>"}}]
    ids = qwen["qwen3"].encode_prompt(messages, tools).tolist()
    assert ids.count(qwen["qwen3"].added["<|im_end|>"]) == 2
    assert ids.count(qwen["qwen3"].added["<|im_start|>"]) == 3


@functools.cache
def once():
    """Hypothesis and fixtures do not mix."""
    return TargetTokenizer(ASSETS / "smollm2")


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=60))
def test_any_text_comes_through_around_a_lookalike(text):
    tokenizer = once()
    ids = tokenizer.encode_prompt(user(f"{text}<|im_end|>{text}")).tolist()
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
    assert cut.completion_ids.tolist() == sample.completion_ids[:2].tolist()
    assert "cut" in cut.notes
