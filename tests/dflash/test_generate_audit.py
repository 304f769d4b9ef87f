"""The early audit inside `dflash generate`: data of no use ends the run before a day is lost."""

from __future__ import annotations

import json

import pytest

from tests.support.completing import count_rows, generate, rows_of

GATE = 4


def report_of(out):
    return json.loads((out / "early-audit" / "report.json").read_text())


def test_87_percent_of_rows_with_six_loss_tokens_end_with_the_first_shard(
    tmp_path, servers, prompts
):
    """What once was found after a training: an empty thought and nothing else in 87 rows of 100."""
    server, out = servers("--say", "mostly-empty"), tmp_path / "out"
    extra = ["--thinking", "on", "--shard-rows", "500", "--concurrency", "8"]
    text = generate(prompts(1500), out, server, check=GATE, extra=extra)
    assert len(server.seen()) <= 500 + 8
    rows = rows_of(out)
    assert len(rows) == 500
    assert 0.8 < sum(len(row["output_ids"]) == 6 for row in rows) / 500 < 0.95
    assert "stopped by the early audit of the first 500 rows" in text
    assert "of the rows have one and the same number of loss tokens" in text
    assert "of the rows are empty" in text
    assert "thinking: 0% of the finished rows" in text or "thinking: 1" in text
    # The last two lines are what a runbook shows as the reason: what was found, and the next step.
    last = [line for line in text.splitlines() if line.strip()][-2:]
    assert "8" in last[0]
    assert "--gate" in last[1]
    assert str(out / "early-audit" / "samples.json") in last[1]
    samples = json.loads((out / "early-audit" / "samples.json").read_text())["samples"]
    assert any("empty" in row["flags"] for row in samples)
    assert not report_of(out)["passed"]

    # The same command again asks nobody: the rows are the same.
    generate(prompts(1500), out, server, check=GATE, extra=extra)
    assert len(server.seen()) <= 500 + 8
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"] is False


@pytest.mark.parametrize(
    ("say", "extra", "gate"),
    [
        ("words", ["--thinking", "on"], "thinking"),
        ("nothing", [], "max_empty"),
        ("same", [], "max_identical"),
        ("words", ["--max-tokens", "5"], "max_truncated"),
        ("calls", [], "max_tool_loop"),
    ],
)
def test_each_kind_of_useless_data_ends_the_run(tmp_path, servers, prompts, say, extra, gate):
    server, out = servers("--say", say), tmp_path / "out"
    words = ["--audit-after", "40", *extra]
    text = generate(prompts(200), out, server, check=GATE, extra=words)
    failed = {row["gate"] for row in report_of(out)["gates"] if not row["passed"]}
    assert gate in failed
    assert f"{gate}: " in text
    assert len(server.seen()) <= 40 + 4
    # A person may say that it is meant so; then the same folder goes on.
    allowed = [word for name in failed for word in ("--gate", allowing(name))]
    generate(prompts(200), out, server, extra=[*words, *allowed])
    assert len({row["id"] for row in rows_of(out)}) == 200
    assert len(server.seen()) <= 200 + 4


def allowing(name):
    return "thinking=any" if name == "thinking" else f"{name}=1"


def test_good_data_is_audited_to_the_end(tmp_path, servers, prompts):
    server, out = servers("--say", "thought"), tmp_path / "out"
    extra = ["--thinking", "on", "--audit-after", "30", "--gate", "max_empty=0"]
    generate(prompts(100), out, server, extra=extra)
    report = report_of(out)
    assert report["passed"]
    assert report["thinking"]["closed_of_finished"] == 1
    assert {row["gate"] for row in report["gates"]} >= {"thinking", "max_empty", "max_truncated"}


def test_a_run_of_fewer_rows_is_judged_at_its_end(tmp_path, servers, prompts):
    server, out = servers("--say", "same"), tmp_path / "out"
    generate(prompts(20), out, server, check=GATE)
    assert count_rows(out) == 20
    assert "max_identical" in generate(prompts(20), out, server, check=GATE)
    assert len(server.seen()) == 20


def test_what_a_kill_left_beside_the_report_goes_with_the_next_run(tmp_path, servers, prompts):
    server, out = servers("--say", "thought"), tmp_path / "out"
    (out / "early-audit").mkdir(parents=True)
    (out / "early-audit" / ".report.json.11.part").write_text('{"pas')
    generate(prompts(3), out, server)
    assert {path.name for path in (out / "early-audit").iterdir()} == {
        "report.json", "report.txt", "samples.json",
    }  # fmt: skip


def test_what_goes_wrong_later_is_seen_in_the_latest_rows(tmp_path, servers, prompts):
    """Of all rows it would be a quarter, which is allowed; of the latest it is all of them."""
    good, out = servers(), tmp_path / "out"
    extra = ["--audit-after", "50"]
    generate(prompts(150), out, good, extra=extra)
    bad = servers("--say", "same")
    text = generate(prompts(400), out, bad, check=GATE, extra=extra)
    assert "max_identical" in text
    assert count_rows(out) <= 150 + 50 + 8


def test_chance_does_not_end_a_run(tmp_path):
    """At 500 rows 6 % prove nothing against an allowed 5 %; 9 % do."""
    from dflash.early_audit import EarlyAudit
    from dflash.errors import GateFailed
    from dflash.gates import early_gates

    def feed(share, folder):
        gates = early_gates(["max_truncated=0.05"], thinking="default")
        audit = EarlyAudit(folder, gates=gates, after=500, settings={})
        for n in range(500):
            cut = n % 100 < share
            audit.add(
                {
                    "id": f"r{n}", "messages": [{"role": "user", "content": f"q{n}"}],
                    "completion": f"a{n} " * (n % 7 + 1),
                    "finish_reason": "length" if cut else "stop",
                    "usage": {"completion_tokens": n % 7 + 1},
                }
            )  # fmt: skip

    feed(6, tmp_path / "six")
    with pytest.raises(GateFailed, match=r"max_truncated: 9% of the rows"):
        feed(9, tmp_path / "nine")


def test_a_wrong_gate_is_told_before_anything_is_asked(tmp_path, servers, prompts):
    server, out = servers(), tmp_path / "out"
    text = generate(prompts(3), out, server, check=2, extra=["--gate", "max_emty=0"])
    assert "Did you mean max_empty?" in text
    assert not out.exists()
    assert server.seen() == []
