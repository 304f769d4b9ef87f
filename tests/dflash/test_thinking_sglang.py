"""Thinking mode from a real SGLang server to loss masks: exact text, exact ids, a gate that stops.

The server runs a model that says one known text, so that every byte can be foretold here without
asking the code under test.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dflash.__main__ import main
from dflash.completions import read_records, shard_paths
from dflash.shards import TokenizedSet
from tests.support.sglang_server import RunningServer, post, serve_python, sglang_server
from tests.support.toy_model import ANSWER, THOUGHT, ToyModel, make_toy_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
GATE_FAILED = 4
PARSER = ("--reasoning-parser", "qwen3")
QUESTIONS = tuple(f"What is {n} and {4 - n}?" for n in range(12))


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> ToyModel:
    return make_toy_model(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="session")
def server(toy: ToyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    serve_python()
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    with sglang_server(toy.path, name="toy", log=log, flags=PARSER) as running:
        yield running


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [
        {"id": f"q{n}", "messages": [{"role": "user", "content": question}]}
        for n, question in enumerate(QUESTIONS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def generate(server: RunningServer, prompts: Path, out: Path, *more: str) -> list[dict[str, Any]]:
    """Runs the command; the rows in the order of the questions."""
    argv = ["--prompts", str(prompts), "--server", server.url, "--model", server.name]
    # This model says one text to everybody.
    argv += ["--gate", "max_identical=1", "--gate", "max_mode_share=1"]
    argv += ["--out", str(out), "--temperature", "0", "--concurrency", "4", *more]
    assert main(["generate", *argv]) == 0
    rows = {row["id"]: row for row in read_records(shard_paths(out))}
    assert len(rows) == len(QUESTIONS)
    return [rows[f"q{n}"] for n in range(len(QUESTIONS))]


def audit(completions: Path, toy: ToyModel, report: Path, *gates: str) -> int:
    argv = ["--completions", str(completions), "--tokenizer", str(toy.path)]
    argv += ["--report", str(report)]
    for gate in gates:
        argv += ["--gate", gate]
    return main(["audit", *argv])


def prompt_ids(toy: ToyModel, question: str, *, thinking: bool) -> list[int]:
    """What the server must have read, from the tokenizer alone: no template is rendered here."""
    from tokenizers import Tokenizer

    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    text += "" if thinking else "<think>\n\n</think>\n\n"
    ids: list[int] = Tokenizer.from_file(str(toy.path / "tokenizer.json")).encode(text).ids
    return ids


def tokenized(
    completions: Path, toy: ToyModel, out: Path
) -> dict[str, tuple[list[int], list[int]]]:
    """Ids and mask of every row, over both splits."""
    argv = ["--completions", str(completions), "--tokenizer", str(toy.path), "--out", str(out)]
    assert main(["tokenize", *argv, "--split", "train=0.75,heldout=0.25"]) == 0
    found = {}
    for split in ("train", "heldout"):
        rows = TokenizedSet(out, split)
        assert len(rows) > 0
        for n in range(len(rows)):
            row = rows.row(n)
            found[row.id] = (row.input_ids.tolist(), row.loss_mask.tolist())
    return found


def test_a_thought_arrives_whole_and_is_what_the_loss_sees(
    server: RunningServer, prompts: Path, toy: ToyModel, tmp_path: Path
) -> None:
    rows = generate(server, prompts, tmp_path / "done", "--thinking", "on", "--max-tokens", "64")
    for row, question in zip(rows, QUESTIONS, strict=True):
        assert row["completion"] == f"<think>{THOUGHT}</think>{ANSWER}<|im_end|>"
        assert row["output_ids"] == list(toy.output_ids)
        assert row["input_ids"] == prompt_ids(toy, question, thinking=True)
        assert (row["reasoning"], row["content"]) == (THOUGHT, ANSWER)
        assert (row["finish_reason"], row["matched_stop"]) == ("stop", toy.output_ids[-1])
        assert row["usage"]["completion_tokens"] == len(toy.output_ids)

    assert audit(tmp_path / "done", toy, tmp_path / "report", "thinking=required") == 0
    assert (tmp_path / "report/report.json").is_file()

    samples = tokenized(tmp_path / "done", toy, tmp_path / "set")
    for n, question in enumerate(QUESTIONS):
        read = prompt_ids(toy, question, thinking=True)
        assert samples[f"q{n}"] == (
            read + list(toy.output_ids),
            [0] * len(read) + [1] * len(toy.output_ids),
        )


def test_a_run_without_thinking_is_stopped_by_the_gate(
    server: RunningServer,
    prompts: Path,
    toy: ToyModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = generate(server, prompts, tmp_path / "done", "--thinking", "off", "--max-tokens", "64")
    for row, question in zip(rows, QUESTIONS, strict=True):
        assert row["completion"] == toy.unthinking
        assert row["output_ids"] == list(toy.unthinking_ids)
        assert row["input_ids"] == prompt_ids(toy, question, thinking=False)
        assert row.get("reasoning") is None

    capsys.readouterr()
    gated = audit(tmp_path / "done", toy, tmp_path / "report", "thinking=required")
    assert gated == GATE_FAILED
    assert "thinking" in capsys.readouterr().err
    assert (tmp_path / "report/report.json").is_file()


def test_a_thought_that_was_cut_is_marked_to_its_last_token_and_not_ended(
    server: RunningServer, prompts: Path, toy: ToyModel, tmp_path: Path
) -> None:
    # Else the early audit would end the run, as the next test has it.
    allowed = ("--gate", "max_truncated=1", "--gate", "thinking=any")
    rows = generate(
        server, prompts, tmp_path / "done", "--thinking", "on", "--max-tokens", "5", *allowed
    )
    cut = list(toy.output_ids[:5])
    for row in rows:
        assert row["finish_reason"] == "length"
        assert row["output_ids"] == cut
        assert "</think>" not in row["completion"]
        assert THOUGHT.startswith(row["reasoning"])
        assert row["content"] == ""

    gated = audit(tmp_path / "done", toy, tmp_path / "report", "thinking=required")
    assert gated == GATE_FAILED

    samples = tokenized(tmp_path / "done", toy, tmp_path / "set")
    for n, question in enumerate(QUESTIONS):
        read = prompt_ids(toy, question, thinking=True)
        assert samples[f"q{n}"] == (read + cut, [0] * len(read) + [1] * len(cut))


def test_the_early_audit_ends_a_run_whose_thoughts_are_cut(
    server: RunningServer,
    prompts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ["--prompts", str(prompts), "--server", server.url, "--model", server.name]
    argv += ["--out", str(tmp_path / "done"), "--thinking", "on", "--max-tokens", "5"]
    assert main(["generate", *argv, "--audit-after", "10", "--concurrency", "1"]) == GATE_FAILED
    said = capsys.readouterr().err
    assert "stopped by the early audit of the first 10 rows" in said
    assert "max_truncated: 100% of the rows are cut off by the token limit" in said
    assert (tmp_path / "done" / "early-audit" / "samples.json").is_file()


def test_a_thought_that_the_server_split_off_is_put_back_byte_for_byte(
    server: RunningServer, prompts: Path, toy: ToyModel, tmp_path: Path
) -> None:
    """By text alone, as of a server of another kind; held against what the ids decode to."""
    common = ("--api", "openai", "--thinking", "on", "--tokenizer", str(toy.path))
    whole = generate(server, prompts, tmp_path / "whole", *common, "--max-tokens", "64")
    for row in whole:
        assert "output_ids" not in row
        assert (row["reasoning"], row["content"]) == (THOUGHT, ANSWER)
        assert row["completion"] == f"<think>{THOUGHT}</think>{ANSWER}"
    cut = generate(
        server, prompts, tmp_path / "cut", *common, "--max-tokens", "5",
        "--gate", "max_truncated=1", "--gate", "thinking=any",
    )  # fmt: skip
    for row in cut:
        assert row["finish_reason"] == "length"
        assert row["completion"].startswith("<think>")
        assert "</think>" not in row["completion"]
        assert THOUGHT.startswith(row["completion"].removeprefix("<think>"))

    samples = tokenized(tmp_path / "whole", toy, tmp_path / "set")
    for n, question in enumerate(QUESTIONS):
        read = prompt_ids(toy, question, thinking=True)
        assert samples[f"q{n}"][0] == read + list(toy.output_ids)


def test_the_servers_load_is_read(server: RunningServer) -> None:
    """What the window follows: a number of requests that run, and of those that wait."""
    import asyncio

    import httpx

    from dflash.client import load_of

    async def ask() -> tuple[int, int] | None:
        async with httpx.AsyncClient() as http:
            return await load_of(http, server.url)

    found = asyncio.run(ask())
    assert found is not None
    assert min(found) >= 0


def test_the_servers_own_parser_splits_the_same_text(server: RunningServer, toy: ToyModel) -> None:
    """What a client sees that leaves parsing to the server, as most do."""
    body = {
        "model": server.name,
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
        "temperature": 0,
        "max_tokens": 64,
        "chat_template_kwargs": {"enable_thinking": True},
        "return_token_ids": True,
    }
    answer = post(server.url + "/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, ANSWER)
    assert answer["choices"][0]["response_token_ids"] == list(toy.output_ids)
