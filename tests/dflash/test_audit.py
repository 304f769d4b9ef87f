"""`dflash audit`: every defect once, and the gates that name it."""

from __future__ import annotations

import functools
import json
import pathlib
import shutil
from collections import Counter

import pytest

from dflash import gates as gates_module
from dflash.__main__ import main
from dflash.audit import audit
from dflash.audit_report import distribution, render
from dflash.completions import CompletionStore
from dflash.errors import InputInvalid, UsageError
from dflash.gates import parse_gates
from dflash.looker import Eye, Tally
from dflash.measures import Sight, Thinking, is_degenerate, thinking_of
from dflash.progress import Progress
from dflash.tokenize import tokenize
from dflash.tokenizer import TargetTokenizer

ASSETS = pathlib.Path(__file__).parents[1] / "assets"


@functools.cache
def smol():
    return TargetTokenizer(ASSETS / "smollm2")


@pytest.fixture(scope="session")
def thinker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(ASSETS / "smollm2", folder)
    template = ASSETS / "chat-templates" / "qwen3_6.jinja"
    shutil.copy(template, folder / "chat_template.jinja")
    value = json.loads((folder / "tokenizer.json").read_text())
    model = dict(value["added_tokens"][-1], special=False)
    value["added_tokens"] += [
        dict(model, id=49152, content="<think>"),
        dict(model, id=49153, content="</think>"),
    ]
    (folder / "tokenizer.json").write_text(json.dumps(value))
    return TargetTokenizer(folder)


def row(name, completion, *, prompt=None, finish="stop", **more):
    messages = [{"role": "user", "content": prompt or f"question {name}"}]
    tokens = len(completion.split())
    return {
        "id": name,
        "messages": messages,
        "completion": completion,
        "finish_reason": finish,
        "usage": {"completion_tokens": tokens, "prompt_tokens": 3},
        **more,
    }


def folder_of(path, rows, **settings):
    with CompletionStore(path, settings={"model": "m", **settings}, shard_rows=1000) as store:
        for record in rows:
            store.add(record)
        store.finish(complete=True, failed=0)
    return path


def look(tmp_path, rows, *gates, **kwargs):
    source = folder_of(tmp_path / "rows", rows)
    return audit(
        completions=source, gates=gates, out=tmp_path / "report", progress=Progress(), **kwargs
    )


def good(count):
    # Numbers rather than words in between, so that no two rows are alike or loop.
    return [row(f"r{n}", " ".join(f"word{n * k}" for k in range(5 + n))) for n in range(count)]


def verdicts(report):
    return {gate["gate"]: gate["passed"] for gate in report["gates"]}


def test_clean_rows_pass(tmp_path):
    report = look(tmp_path, good(20), "min_rows=20", "max_empty=0", "max_identical=0")
    assert report["passed"]
    assert verdicts(report) == {"min_rows": True, "max_empty": True, "max_identical": True}
    assert report["loss_tokens"]["mode_share"] == pytest.approx(0.05)
    assert (tmp_path / "report" / "report.txt").read_text().startswith(str(tmp_path / "rows"))
    samples = json.loads((tmp_path / "report" / "samples.json").read_text())["samples"]
    assert samples[0]["messages"][0]["content"] == "question r0"
    assert len(samples) == 12


LOOP = "and so on " * 200
DEFECTS = {
    "empty": row("bad", "<think>\nhm\n</think>\n\n<|im_end|>"),
    "identical": row("bad", "word0 word0 word0 word0 word0"),
    "truncated": row("bad", "half a", finish="length"),
    "unclosed": row("bad", "<think>\nforever", finish="length"),
    "orphan": row("bad", "a </think> b </think> c"),
    "repetition": row("bad", "start " + LOOP),
    "prompt_echo": row("bad", "You asked: " + "why is it so? " * 4, prompt="why is it so? " * 4),
    "duplicate_prompts": row("bad", "quite new", prompt="question r3"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_has_its_gate(tmp_path, defect):
    rows = [*good(19), DEFECTS[defect]]
    if defect == "orphan":  # one row that opens its thought: the template does not
        rows[0] = row("r0", "<think>\na\n</think>\n\nb")
    report = look(tmp_path, rows, f"max_{defect}=0")
    (gate,) = [gate for gate in report["gates"] if gate["gate"] == f"max_{defect}"]
    assert not gate["passed"]
    assert gate["found"] == pytest.approx(1 / 20)
    assert "5% of the rows" in gate["sentence"]
    assert "(for one, bad)" in gate["sentence"]
    assert look(tmp_path, [], f"max_{defect}=0.05")["passed"]


def test_command_exits_with_4_and_says_why(tmp_path, capsys):
    source = folder_of(tmp_path / "rows", [*good(5), DEFECTS["truncated"]])
    words = ["audit", "--completions", str(source), "--report", str(tmp_path / "report")]
    assert main([*words, "--gate", "min_rows=60", "--gate", "max_truncated=0.1"]) == 4
    text = capsys.readouterr().err
    assert "min_rows: 6 rows, at least 60 allowed" in text
    assert "max_truncated: 16.7% of the rows are cut off by the token limit" in text
    assert "report.txt" in text
    assert main([*words, "--gate", "max_truncated=0.9"]) == 0


def test_ids_beyond_the_vocabulary_and_the_mask_token(tmp_path):
    rows = [row(f"r{n}", f"text {n}", output_ids=[50, 60 + n, 2], input_ids=[1]) for n in range(9)]
    rows.append(row("high", "text", output_ids=[49152, 2], input_ids=[1]))
    rows.append(row("mask", "text x", output_ids=[16, 70, 2], input_ids=[1]))
    report = look(tmp_path, rows, tokenizer=ASSETS / "smollm2", mask_token_id=16)
    assert verdicts(report) == {
        "min_rows": True,
        "max_beyond_vocabulary": False,
        "max_mask_token": False,
        "max_mask_clash": True,
    }
    assert report["examples"]["beyond_vocabulary"] == ["high"]
    assert report["special_ids"] == {"<empty_output>": 1}
    assert report["examples"]["special_inside"] == ["mask"]


def test_lengths_that_no_row_tells_are_unknown(tmp_path):
    rows = [{**line, "usage": None} for line in good(30)]
    report = look(tmp_path, rows, "min_mean_loss_tokens=1")
    assert report["loss_tokens"] is report["length"] is report["shares"]["same_length"] is None
    (gate,) = [one for one in report["gates"] if one["gate"] == "min_mean_loss_tokens"]
    assert "this input does not tell" in gate["sentence"]
    text = render(report)
    assert "loss tokens a row: unknown" in text
    assert "100.00%" not in text


def test_a_gate_the_input_cannot_judge_fails(tmp_path):
    report = look(tmp_path, good(3), "max_special_inside=0")
    (gate,) = [gate for gate in report["gates"] if not gate["passed"]]
    assert "does not tell" in gate["sentence"]


def sight(prompt_ids, ids, finish="stop", text=""):
    return Sight(
        id="a",
        split="",
        messages=None,
        prompt_ids=prompt_ids,
        completion_ids=ids,
        completion=text,
        finish_reason=finish,
        loss_tokens=len(ids),
        length=len(ids),
    )


OPEN, CLOSE = 49152, 49153


@pytest.mark.parametrize(
    ("prompt", "ids", "expected"),
    [
        ([1, OPEN, 198], [700, CLOSE, 701, 2], Thinking.CLOSED),
        ([1, OPEN, 198], [198, CLOSE, 701, 2], Thinking.EMPTY),
        ([1, OPEN, 198], [700, 701], Thinking.UNCLOSED),
        ([1, OPEN, 198], [700, CLOSE, 701, CLOSE, 2], Thinking.ORPHAN),
        ([1, 9], [OPEN, 700, CLOSE, 701, 2], Thinking.CLOSED),
        ([1, 9], [700, CLOSE, 701, 2], Thinking.ORPHAN),
        ([1, 9], [700, 701, 2], Thinking.NONE),
        ([1, OPEN, 198, CLOSE, 198], [700, 2], Thinking.NONE),
    ],
)
def test_thinking_by_ids(thinker, prompt, ids, expected):
    assert thinking_of(sight(prompt, ids), thinker) == expected


@pytest.mark.parametrize("opening", ["<think>\n", ""])
def test_thinking_required_in_both_styles(tmp_path, opening):
    """Qwen3 writes the opening tag, from Qwen3.5 on the prompt has it; no tokenizer is given."""
    rows = [row(f"r{n}", f"{opening}t{n}\n</think>\n\na{n}<|im_end|>") for n in range(10)]
    rows.append(row("cut", f"{opening}never ends", finish="length"))
    report = look(tmp_path, rows, "thinking=required")
    assert report["passed"], report["gates"]
    assert report["thinking"]["counts"]["closed"] == 10
    with_one_less = [*rows, row("none", "straight answer")]
    shutil.rmtree(tmp_path / "rows")
    report = look(tmp_path, with_one_less, "thinking=required")
    (gate,) = [gate for gate in report["gates"] if not gate["passed"]]
    assert gate["sentence"] == (
        "thinking: 90.9% of the finished rows have a thought that is closed, 100% required"
    )
    assert look(tmp_path, [], "thinking=0.9")["passed"]
    assert not look(tmp_path, [], "thinking=off")["passed"]


def test_tokenized_set_and_its_leak(tmp_path):
    rows = [row(f"r{n}", f"answer {n}", prompt=f"question {n % 30}") for n in range(60)]
    source = folder_of(tmp_path / "rows", rows)
    tokenize(
        completions=source,
        tokenizer=ASSETS / "smollm2",
        out=tmp_path / "set",
        progress=Progress(),
    )
    report = audit(
        tokenized=tmp_path / "set",
        tokenizer=ASSETS / "smollm2",
        gates=["max_split_leakage=0", "min_heldout_rows=8", "max_truncated=0"],
        out=tmp_path / "report",
        progress=Progress(),
    )
    assert verdicts(report) == {
        "min_rows": True,
        "max_beyond_vocabulary": True,
        "max_split_leakage": False,
        "min_heldout_rows": True,
        "max_truncated": True,
    }
    tokens = json.loads((tmp_path / "report" / "samples.json").read_text())["samples"][0]["tokens"]
    made = "".join(token["text"] for token in tokens if token["loss"])
    assert made.startswith("answer ")
    assert made.endswith("<|im_end|>")
    assert sum(report["splits"].values()) == 60


def test_running_job_can_be_looked_at(tmp_path):
    with CompletionStore(tmp_path, settings={"model": "m"}, shard_rows=3) as store:
        for record in good(5):
            store.add(record)
        report = audit(completions=tmp_path, out=tmp_path / "report", progress=Progress())
    assert report["rows"] == 5


def test_empty_folder(tmp_path):
    with pytest.raises(InputInvalid, match="holds no row"):
        look(tmp_path, [])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("max_trunkated=1", "no gate 'max_trunkated'"),
        ("max_empty=few", "'few' is no number"),
        ("max_empty", "has no value"),
        ("thinking=often", "'often' is no number"),
    ],
)
def test_gates_that_make_no_sense(word, message):
    with pytest.raises(UsageError, match=message):
        parse_gates([word])


def test_wrong_gate_is_usage_and_suggests(tmp_path, capsys):
    words = ["audit", "--completions", str(tmp_path), "--report", str(tmp_path / "r")]
    assert main([*words, "--gate", "max_trunkated=1"]) == 2
    assert "Did you mean max_truncated?" in capsys.readouterr().err


def test_every_rule_reads_a_number_of_the_report():
    eye = Eye(smol(), mask_token_id=3)
    tally = Tally(eye)
    tally.add(eye.look(sight([1, 5], [700, 2], text="x")))
    report = tally.report(source="x")
    unknown = {
        name
        for name, rule in gates_module.RULES.items()
        if gates_module._look_up(report, rule.metric) is None
    }
    # Completions have no splits, and this row no prompt ids that a server recorded.
    assert unknown == {"min_heldout_rows", "max_template_mismatch"}


def test_repetition_is_told_from_lists_and_code():
    code = [token for n in range(40) for token in ("x", "[", n, "]", "=", n * n, ";")]
    assert not is_degenerate(code)
    assert is_degenerate([1, 2, 3] * 100)
    assert is_degenerate([*range(500), *([7] * 200), 2])
    assert not is_degenerate([1, 2, 3] * 20)


def test_histogram_covers_every_row():
    for values in ([5], [1, 1, 1], list(range(1000)), [1, 10**6]):
        numbers = distribution(Counter(values))
        assert sum(bin_["rows"] for bin_ in numbers["histogram"]) == len(values)
        assert len(numbers["histogram"]) <= 12
        assert numbers["histogram"][-1]["to"] >= numbers["max"]


def test_report_text(tmp_path):
    rows = [*good(15), *(row(f"m{n}", "a b c " * n) for n in range(1, 6))]
    report = look(tmp_path, rows, "max_mode_share=0.04")
    text = render(report)
    assert "FAIL max_mode_share" in text
    assert "█" in text
    assert "finish reasons: stop 20" in text


def test_the_set_of_six_loss_tokens_is_stopped_with_the_right_sentence(tmp_path, capsys):
    """87 of 100 rows train on exactly six tokens: an empty thought, and nothing else."""
    rows = [row(f"six{n}", f"x{n}", output_ids=[700 + n, 1, 5, 6, 7, 2]) for n in range(87)]
    rows += [row(f"r{n}", f"y{n}", output_ids=[*range(600, 700 + n), 2]) for n in range(13)]
    source = folder_of(tmp_path / "rows", rows)
    words = ["audit", "--completions", str(source), "--report", str(tmp_path / "report")]
    assert main([*words, "--gate", "max_mode_share=0.2"]) == 4
    out, said = capsys.readouterr()
    assert "87% of the rows have one and the same number of loss tokens" in said
    assert "most often 6 (87.0%)" in out
    assert main([*words, "--gate", "max_mode_share=0.9"]) == 0


def test_there_is_a_picture(tmp_path):
    from PIL import Image

    look(tmp_path, good(30))
    with Image.open(tmp_path / "report" / "histogram.png") as image:
        assert image.size == (900, 640)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 3


TOOL = {"function": {"name": "weather", "parameters": {"required": ["city"]}}}
GOOD_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
PARAMETER = "<parameter=city>\nKöln\n</parameter>"
XML_CALL = f"<tool_call>\n<function=weather>\n{PARAMETER}\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD_CALL, ""),
        (XML_CALL, ""),
        ("<think>\n<tool_call>nonsense</tool_call></think>ok", ""),
        ("<tool_call>\n{'name': 'weather'}\n</tool_call>", "a call is no JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "a call names no function"),
        ('<tool_call>{"name": "weather", "arguments": []}</tool_call>', "are no object"),
        ('<tool_call>{"name": "rain", "arguments": {}}</tool_call>', "rain was not offered"),
        ('<tool_call>{"name": "weather", "arguments": {}}</tool_call>', "weather lacks city"),
        ('<tool_call>{"name": "weather"', "a call is not closed"),
    ],
)
def test_tool_calls_are_checked_against_the_tools(tmp_path, text, problem):
    rows = [*good(9), row("call", text, tools=[TOOL])]
    report = look(tmp_path, rows, "max_bad_tool_call=0")
    (gate,) = [gate for gate in report["gates"] if gate["gate"] == "max_bad_tool_call"]
    assert gate["passed"] == (not problem)
    assert [name for name in report["tool_calls"]["problems"] if problem in name] or not problem
    assert ("tool calls: 1" in (tmp_path / "report" / "report.txt").read_text()) == (
        "think" not in text
    )


def test_a_cut_call_is_the_limits_fault(tmp_path):
    report = look(tmp_path, [row("cut", '<tool_call>{"name": "wea', finish="length", tools=[TOOL])])
    assert report["shares"]["bad_tool_call"] == 0


def test_a_loop_of_tool_calls_over_turns(tmp_path):
    call = {"function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    turn = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    turn += [{"role": "tool", "content": "error"}]
    looping = row("loop", GOOD_CALL, tools=[TOOL])
    looping["messages"] = [*looping["messages"], *turn, *turn]
    asked_again = row("again", GOOD_CALL, tools=[TOOL])
    asked_again["messages"] = [*turn, *turn, {"role": "user", "content": "and now?"}]
    report = look(tmp_path, [looping, asked_again], "max_tool_loop=0")
    assert report["examples"]["tool_loop"] == ["loop"]
    assert not report["passed"]


def test_prompts_that_the_template_renders_otherwise(tmp_path):
    tokenizer = smol()
    exact = tokenizer.encode_prompt([{"role": "user", "content": "question a"}]).tolist()
    rows = [row("a", "x", output_ids=[700, 2], input_ids=exact)]
    rows += [row("b", "y", output_ids=[701, 2], input_ids=exact)]
    report = look(tmp_path, rows, "max_template_mismatch=0", tokenizer=ASSETS / "smollm2")
    assert report["shares"]["template_mismatch"] == 0.5
    assert not report["passed"]
    assert report["examples"]["template_mismatch"] == ["b"]


def test_a_mask_token_that_ends_texts(tmp_path):
    rows = [row("a", "x", output_ids=[700, 701], input_ids=[5], finish="length")]
    report = look(tmp_path, rows, tokenizer=ASSETS / "smollm2", mask_token_id=2)
    assert not verdicts(report)["max_mask_clash"]


def test_a_set_of_another_tokenizer_is_refused(tmp_path, qwen):
    source = folder_of(tmp_path / "rows", good(12))
    tokenize(
        completions=source, tokenizer=ASSETS / "smollm2", out=tmp_path / "set", progress=Progress()
    )
    with pytest.raises(InputInvalid, match="another tokenizer or chat template"):
        audit(
            tokenized=tmp_path / "set", tokenizer=qwen["qwen3"].path, out=tmp_path / "report",
            progress=Progress(),
        )  # fmt: skip
