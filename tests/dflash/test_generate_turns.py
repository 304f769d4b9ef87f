"""Conversations of several turns, tools, split-off thoughts, budgets, quarantine."""

from __future__ import annotations

import json
import signal

import pytest

from dflash.answers import read_answer, rejoined
from dflash.outcomes import ServerWrong
from tests.dflash.fake_server import answer_text
from tests.support.completing import command, count_rows, generate, rows_of
from tests.support.deadline import wait_for

TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "old answer 1"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "old answer 2"},
    {"role": "user", "content": "three"},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def roles(messages):
    return "".join(message["role"][0] for message in messages)


def test_kept_turns_are_context(tmp_path, servers):
    server, path = servers(), write(tmp_path / "p", {"id": "a", "messages": TALK, "tools": TOOLS})
    generate(path, tmp_path / "out", server)
    (seen,) = server.seen()
    assert seen["body"]["messages"] == TALK
    assert seen["body"]["tools"] == TOOLS
    (row,) = rows_of(tmp_path / "out")
    assert row["tools"] == TOOLS


def test_stripped_turns_leave_what_the_users_say(tmp_path, servers):
    tool = {"role": "tool", "content": "42"}
    server = servers()
    path = write(tmp_path / "p", {"id": "a", "messages": [*TALK, {"role": "assistant",
                 "content": "old answer 3"}, tool]})  # fmt: skip
    generate(path, tmp_path / "out", server, extra=["--turns", "strip"])
    (seen,) = server.seen()
    assert [m["content"] for m in seen["body"]["messages"]] == ["Be kind.", "one", "two", "three"]
    text = generate(path, tmp_path / "out", server, check=1)
    assert "turns 'strip' -> None" in text


def test_each_turn_is_said_anew_with_the_targets_own_words_before_it(tmp_path, servers):
    server, path = servers("--say", "thought"), write(tmp_path / "p", {"id": "a", "messages": TALK})
    generate(path, tmp_path / "out", server, extra=["--turns", "regenerate"])
    rows = {row["id"]: row for row in rows_of(tmp_path / "out")}
    assert list(rows) == ["a#1", "a#2", "a#3"]
    assert [roles(rows[name]["messages"]) for name in rows] == ["su", "suau", "suauau"]
    said = [m["content"] for m in rows["a#3"]["messages"] if m["role"] == "assistant"]
    # The content without its thought, and nothing of the file's own answers.
    assert said == [f"one {answer_text('one')}", f"two {answer_text('two')}"]
    assert rows["a#1"]["completion"].startswith("<think>\n")


def test_turns_behind_a_tools_answer_are_left_out(tmp_path, servers, monkeypatch):
    lines = tmp_path / "progress.jsonl"
    monkeypatch.setenv("RUNBOOK_PROGRESS", str(lines))
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look"}}]}
    talk = [
        *TALK[:2],
        call,
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "x"},
    ]
    server, path = servers(), write(tmp_path / "p", {"id": "a", "messages": talk, "tools": TOOLS})
    generate(path, tmp_path / "out", server, extra=["--turns", "regenerate"])
    assert [row["id"] for row in rows_of(tmp_path / "out")] == ["a#1"]
    assert "1 turn behind a tool's answer left out" in lines.read_text()


def test_a_conversation_that_was_killed_between_its_turns_goes_on_there(tmp_path, servers, start):
    server, out = servers(), tmp_path / "out"
    talks = [{"id": f"c{n}", "messages": named(TALK, n)} for n in range(12)]
    path = write(tmp_path / "p", *talks)
    words = ["--turns", "regenerate"]
    for wanted in (8, 20):
        server.faults(("none", wanted - count_rows(out)), ("wait", 10**6))
        job = start(command(path, out, server, extra=words))
        wait_for(lambda wanted=wanted: count_rows(out) == wanted, what="rows on disk")
        job.send_signal(signal.SIGKILL)
        assert job.wait(timeout=60) == -signal.SIGKILL
    server.hurry()
    generate(path, out, server, extra=words)
    rows = {row["id"]: row for row in rows_of(out)}
    assert len(rows) == len(rows_of(out)) == 36
    for n in range(12):
        for turn in (2, 3):
            before = rows[f"c{n}#{turn - 1}"]
            messages = rows[f"c{n}#{turn}"]["messages"]
            assert messages[: len(before["messages"])] == before["messages"]
            assert messages[len(before["messages"])]["content"] == before["content"]
    assert len(server.seen()) <= 36 + 2 * 4


def named(messages, n):
    return [{**message, "content": f"{message['content']} {n}"} for message in messages]


def test_a_turn_that_is_refused_holds_up_the_later_ones_only(tmp_path, servers):
    talk = [*TALK[:2], *TALK[2:3], {"role": "user", "content": "too long"}, *TALK[4:]]
    path = write(tmp_path / "p", {"id": "a", "messages": talk}, {"id": "b", "messages": TALK})
    server, out = servers(), tmp_path / "out"
    words = ["--turns", "regenerate", "--max-failed", "0.5"]
    for _ in range(2):
        generate(path, out, server, extra=words)
        assert sorted(row["id"] for row in rows_of(out)) == ["a#1", "b#1", "b#2", "b#3"]
        assert json.loads((out / "manifest.json").read_text())["failed"] == 2
    assert len(server.seen()) == 5


def test_quarantine_is_kept_mended_and_released(tmp_path, servers, prompts):
    server, out = servers(), tmp_path / "out"
    path = write(
        tmp_path / "p", {"id": "long", "messages": [{"role": "user", "content": "too long"}]},
        {"id": "ok", "messages": [{"role": "user", "content": "short"}]},
    )  # fmt: skip
    for _ in range(2):
        generate(path, out, server, check=1)
    assert len(server.seen()) == 2  # what is too long once is too long again
    (row,) = map(json.loads, (out / "quarantine.jsonl").read_text().splitlines())
    assert (row["id"], row["kind"], row["refused"]) == ("long", "too_long", True)
    assert "9000 tokens" in row["reasons"][0]
    generate(path, out, server, check=1, extra=["--retry-quarantined"])
    assert len(server.seen()) == 3
    mended = {"id": "long", "messages": [{"role": "user", "content": "shorter"}]}
    write(path, mended, {"id": "ok", "messages": [{"role": "user", "content": "short"}]})
    generate(path, out, server)
    assert count_rows(out) == 2
    assert (out / "quarantine.jsonl").read_text() == ""


def test_a_budget_of_tokens_ends_the_run_and_a_larger_one_goes_on(tmp_path, servers, prompts):
    server, out, path = servers(), tmp_path / "out", prompts(60)
    generate(path, out, server, extra=["--total-tokens", "500"])
    manifest = json.loads((out / "manifest.json").read_text())
    longest = max(len(row["output_ids"]) for row in rows_of(out))
    assert 500 <= manifest["tokens"] < 500 + 4 * longest
    assert (manifest["complete"], manifest["spent"]) == (True, True)
    asked = len(server.seen())
    generate(path, out, server, extra=["--total-tokens", "500"])
    assert len(server.seen()) == asked
    generate(path, out, server)
    assert count_rows(out) == 60
    assert json.loads((out / "manifest.json").read_text())["spent"] is False


@pytest.mark.parametrize(
    ("reasoning", "content", "finish", "usage", "opened", "wanted"),
    [
        (" a ", "\n\nb", "stop", {}, False, "<think> a </think>\n\nb"),
        (" a ", "\n\nb", "stop", {}, True, " a </think>\n\nb"),
        (" a", "", "length", {}, False, "<think> a"),
        (" a", "", "length", {}, True, " a"),
        (" a", "\n\nb", "length", {}, True, " a</think>\n\nb"),
        ("a", "", "stop", {}, False, "<think>a</think>"),
        ("a", "", "stop", {"reasoning_tokens": 7, "completion_tokens": 7}, False, "<think>a"),
        ("a", "", "stop", {"reasoning_tokens": 8, "completion_tokens": 7}, False, "<think>a"),
        ("a", "", "stop", {"reasoning_tokens": 6, "completion_tokens": 7}, True, "a</think>"),
        ("a", "b", "stop", {"reasoning_tokens": 8, "completion_tokens": 7}, True, "a</think>b"),
    ],
)  # fmt: skip
def test_a_thought_that_was_split_off_is_put_back(
    reasoning, content, finish, usage, opened, wanted
):
    text = rejoined(reasoning, content, finish=finish, usage=usage, opened=opened)
    assert text == wanted


def test_the_template_says_where_the_thought_begins(tmp_path, servers, prompts, qwen):
    """From Qwen3.5 on the prompt has the tag, so the completion must not begin with one more."""
    server = servers("--api", "openai", "--say", "thought", "--split")
    texts = {}
    for name in ("qwen3", "qwen3_6"):
        words = ["--api", "openai", "--tokenizer", str(qwen[name].path), "--thinking", "on"]
        generate(prompts(2), tmp_path / name, server, extra=words)
        row = min(rows_of(tmp_path / name), key=lambda row: row["id"])
        assert row["reasoning"] == f"\n{answer_text('question 0')}\n"
        texts[name] = row["completion"]
    assert texts["qwen3"].startswith("<think>\n")
    assert texts["qwen3_6"] == texts["qwen3"].removeprefix("<think>")


def test_calls_that_the_server_takes_out_of_the_text_are_refused():
    message = {"content": "", "tool_calls": [{"function": {"name": "look"}}]}
    value = {"choices": [{"finish_reason": "tool_calls", "message": message}]}
    with pytest.raises(ServerWrong, match="takes tool calls out"):
        read_answer(value, "openai")


@pytest.mark.parametrize(
    ("of_choice", "of_answer"),
    [
        ({"response_token_ids": [5, 6], "prompt_token_ids": [1]}, {}),  # 0.5.23
        ({"token_ids": [5, 6], "prompt_token_ids": [1]}, {}),  # 0.5.17
        ({}, {"sglext": {"output_ids": [[5, 6]], "input_ids": [[1]]}}),  # `--return-output-ids`
    ],
)
def test_exact_ids_by_every_name_that_servers_have_for_them(of_choice, of_answer):
    choice = {"finish_reason": "stop", "message": {"content": "yes"}, **of_choice}
    found = read_answer({"choices": [choice], **of_answer}, "sglang")
    assert (found.output_ids, found.input_ids) == ([5, 6], [1])


@pytest.mark.parametrize("of_answer", [{}, {"sglext": {}}])
def test_a_server_that_has_no_ids_to_give_is_refused(of_answer):
    value = {"choices": [{"finish_reason": "stop", "message": {"content": "yes"}}], **of_answer}
    with pytest.raises(ServerWrong, match="no token ids"):
        read_answer(value, "sglang")
