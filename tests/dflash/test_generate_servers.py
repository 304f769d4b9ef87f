"""Servers that are full, slow, restarted, drained or others than they were."""

from __future__ import annotations

import json
import os

import pytest

from dflash.client import Settings, refuse_another
from dflash.dispatch import Limits
from dflash.errors import UsageError
from dflash.generate import generate as run
from dflash.outcomes import POLICIES, ServerWrong, Trouble
from dflash.progress import Progress
from dflash.prompts import PromptFile
from dflash.servers import ServerList
from tests.support.completing import command, count_rows, generate, rows_of
from tests.support.deadline import wait_for


def last_servers(lines):
    """By address, what the last line of progress says."""
    return json.loads(lines.read_text().splitlines()[-1])["metrics"].get("servers", {})


def test_the_window_follows_what_a_server_bears(tmp_path, servers, prompts):
    """Its line tells; without that the first window of 16 would stay, or all 256 would wait."""
    server, out = servers("--places", "30", "--delay", "0.3"), tmp_path / "out"
    run(
        prompts=PromptFile(prompts(240)),
        servers=ServerList([server.url]),
        settings=Settings(model="toy", sampling={"max_tokens": 100}),
        out=out,
        limits=Limits(concurrency=256, look_every=0.2),
        progress=Progress(),
    )
    assert count_rows(out) == 240
    # 36 to 54 where its line is seen at once; a busy machine shows it a step or two late.
    assert 24 <= server.most() <= 150, server.most()


def test_a_full_queue_cuts_the_window_and_costs_no_attempt(tmp_path, servers, prompts):
    server, out = servers("--places", "2", "--queue", "3", "--delay", "0.02"), tmp_path / "out"
    run(
        prompts=PromptFile(prompts(80)),
        servers=ServerList([server.url]),
        settings=Settings(model="toy", sampling={"max_tokens": 100}),
        out=out,
        limits=Limits(concurrency=64, attempts=1, first_pause=0.01, look_every=60),
        progress=Progress(),
    )
    assert count_rows(out) == 80
    assert {row["attempt"] for row in rows_of(out)} == {1}
    # Each is asked once, and the few that a full queue turned away again.
    assert len(server.seen()) < 160


def test_a_server_may_say_how_long_to_wait(tmp_path, servers, prompts):
    server, out = servers(), tmp_path / "out"
    server.faults(("429", 2))
    generate(prompts(12), out, server, extra=["--attempts", "1"])
    assert count_rows(out) == 12


def test_progress_tells_of_each_server_and_each_class_of_trouble(
    tmp_path, servers, prompts, monkeypatch
):
    first, second, lines = servers(), servers(), tmp_path / "progress.jsonl"
    monkeypatch.setenv("RUNBOOK_PROGRESS", str(lines))
    first.faults(("500", 1), ("garbage", 1))
    path = prompts(30)
    row = {"id": "long", "messages": [{"role": "user", "content": "too long"}]}
    path.write_text(json.dumps(row) + "\n" + path.read_text())
    generate(path, tmp_path / "out", first, second, extra=["--max-failed", "0.5"])
    metrics = json.loads(lines.read_text().splitlines()[-1])["metrics"]
    assert metrics["troubles"] == {"error": 1, "shape": 1, "too_long": 1}
    assert metrics["failed"] == 1
    assert sum(row["done"] for row in metrics["servers"].values()) == 30
    assert all(row["tok/s"] > 0 for row in metrics["servers"].values())
    assert all(row["state"] == "up" for row in metrics["servers"].values())


def test_a_slow_server_is_drained_and_its_requests_move(tmp_path, servers, prompts, monkeypatch):
    """After two answers of two seconds the other has its work, and what was in flight there."""
    monkeypatch.setattr("dflash.watch.ANSWERS_TO_JUDGE", 2)
    slow, fast = servers("--delay", "2"), servers("--delay", "0.03")
    out = tmp_path / "out"
    run(
        prompts=PromptFile(prompts(250)),
        servers=ServerList([slow.url, fast.url]),
        settings=Settings(model="toy", sampling={"max_tokens": 100}),
        out=out,
        limits=Limits(concurrency=2, first_window=2, look_every=0.1),
        progress=Progress(),
    )
    rows = rows_of(out)
    assert len({row["id"] for row in rows}) == len(rows) == 250
    by_slow = [row for row in rows if row["server"] == slow.url]
    assert 2 <= len(by_slow) < 25  # four, unless this process was held up for seconds
    assert len(slow.seen()) - len(by_slow) >= 1  # moved
    assert {row["attempt"] for row in rows} == {1}  # not the prompts' doing


def test_a_list_of_servers_is_followed(tmp_path, servers, prompts, start):
    """One is drained, another comes. Whoever restarts a server waits until nothing runs there."""
    first, second = servers("--delay", "0.2"), servers("--delay", "0.4")
    listed, out = tmp_path / "servers.json", tmp_path / "out"
    write_list(listed, (first.url, "serving"))
    words = command(prompts(400), out, extra=["--servers", str(listed)])
    job = start(words, env=environment(tmp_path))
    lines = tmp_path / "progress.jsonl"
    wait_for(lambda: count_rows(out) >= 10, what="rows of the first server")
    write_list(listed, (first.url, "draining"), (second.url, "serving"))
    wait_for(
        lambda: (
            first.url.split("//")[1] in last_servers(lines)
            and last_servers(lines)[first.url.split("//")[1]]["state"] == "draining"
            and last_servers(lines)[first.url.split("//")[1]]["running"] == 0
        ),
        what="the first server drained",
    )
    asked = len(first.seen())
    wait_for(lambda: len(second.seen()) >= 10, what="work for the second server")
    assert len(first.seen()) == asked
    listed.write_text('{"servers": [{"ur')  # half written: nothing changes
    write_list(listed, (first.url, "serving"), (second.url, "serving"))
    wait_for(lambda: len(first.seen()) > asked, what="work for the first server again")
    hurry(first, second)
    assert job.wait(timeout=60) == 0
    assert len({row["id"] for row in rows_of(out)}) == 400


def test_a_server_that_is_marked_on_its_host_gets_nothing_new(tmp_path, servers, prompts, start):
    """As `runbook restart` marks it, in the workspace that the job belongs to."""
    marked, other = servers("--delay", "0.3"), servers("--delay", "0.4")
    out, name = tmp_path / "out", marked.url.split("//")[1]
    marks, job_dir = tmp_path / "draining", tmp_path / "jobs" / "attempt"
    job_dir.mkdir(parents=True)
    about = {**environment(tmp_path), "RUNBOOK_JOB_DIR": str(job_dir)}
    job = start(command(prompts(500), out, marked, other), env=about)
    wait_for(lambda: count_rows(out) >= 10, what="rows")
    marks.mkdir()
    (marks / name).touch()
    lines = tmp_path / "progress.jsonl"

    def drained():
        row = last_servers(lines).get(name, {"state": "", "running": 1})
        return row["state"] == "draining" and not row["running"]

    wait_for(drained, what="the marked server drained")
    asked = len(marked.seen())
    (marks / name).unlink()
    wait_for(lambda: len(marked.seen()) > asked, what="work for it again")
    hurry(marked, other)
    assert job.wait(timeout=60) == 0
    assert len({row["id"] for row in rows_of(out)}) == 500


def test_a_request_that_is_overdue_is_asked_elsewhere(tmp_path, servers, prompts, monkeypatch):
    """The server is healthy and answers others: this one request it has lost."""
    monkeypatch.setattr("dflash.watch.OVERDUE_AT_LEAST_S", 2.0)
    losing, other = servers(), servers()
    losing.faults(("hang", 1))
    run(
        prompts=PromptFile(prompts(60)),
        servers=ServerList([losing.url, other.url]),
        settings=Settings(model="toy", sampling={"max_tokens": 100}),
        out=tmp_path / "out",
        limits=Limits(concurrency=2, first_window=2, look_every=0.1),
        progress=Progress(),
    )
    rows = {row["id"]: row for row in rows_of(tmp_path / "out")}
    assert len(rows) == 60
    again = [row["server"] for row in rows.values() if row["attempt"] > 1]
    assert other.url in again
    assert len(again) <= 4, "what was under way, should this machine have stood still"


def hurry(*servers):
    for server in servers:
        server.hurry()


def environment(tmp_path):
    return {**os.environ, "RUNBOOK_PROGRESS": str(tmp_path / "progress.jsonl")}


def write_list(path, *rows):
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps({"servers": [{"url": url, "state": state} for url, state in rows]}))
    aside.replace(path)


def test_a_server_that_comes_back_with_another_model_gets_nothing(
    tmp_path, servers, prompts, start
):
    changing, other = servers("--delay", "0.3"), servers("--delay", "0.4")
    out = tmp_path / "out"
    job = start(command(prompts(200), out, changing, other), env=environment(tmp_path))
    wait_for(lambda: count_rows(out) >= 10, what="rows")
    changing.kill()
    changing.options = ("--weights", "/another")
    changing.start()
    name = changing.url.split("//")[1]
    lines = tmp_path / "progress.jsonl"
    wait_for(
        lambda: last_servers(lines).get(name, {}).get("state") == "refused",
        what="the changed server refused",
    )
    other.hurry()
    assert job.wait(timeout=60) == 0
    assert len({row["id"] for row in rows_of(out)}) == 200
    assert changing.seen() == []
    row = last_servers(lines)[name]
    assert "came back with another model" in row["error"]


def test_the_same_weights_from_another_folder_are_the_same_model():
    before = {"model_path": "/dev/shm/qwen/", "weight_version": "default"}
    refuse_another("http://a", before, {"model_path": "/data/qwen", "weight_version": "default"})
    with pytest.raises(ServerWrong, match="weight_version"):
        refuse_another("http://a", before, {"model_path": "/dev/shm/qwen", "weight_version": "2"})


def test_a_wrong_server_among_right_ones_is_told_at_the_start(tmp_path, servers, prompts):
    right, wrong = servers(), servers("--served", "other")
    text = generate(prompts(40), tmp_path / "out", wrong, right, check=1)
    assert "serves 'other', not 'toy'" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no server"),
        ('{"servers": 3}', "cannot be read as a list of servers"),
        ("example.com:30000", "no URL of a server"),
    ],
)
def test_a_list_that_is_none(tmp_path, prompts, content, said):
    listed = tmp_path / "servers"
    listed.write_text(content)
    words = ["--servers", str(listed), "--give-up-after", "0.2"]
    text = generate(prompts(2), tmp_path / "out", check=1, extra=words)
    assert said in text


def test_lines_are_a_list_too(tmp_path):
    path = tmp_path / "servers.txt"
    path.write_text("# ours\nhttp://a:1/v1\n\nhttp://b:2/\n")
    assert list(ServerList(["http://c:3"], path).states) == [
        "http://c:3",
        "http://a:1",
        "http://b:2",
    ]


def test_no_server_at_all(tmp_path, prompts):
    text = generate(prompts(2), tmp_path / "out", check=2)
    assert "no server is named" in text
    text = generate(prompts(2), tmp_path / "out", "localhost:30000", check=2)
    assert "'localhost:30000' is no URL of a server" in text
    with pytest.raises(UsageError):
        ServerList(["localhost"])


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (["--audit-after", "-1"], "--audit-after -1 is less than none"),
        (["--max-failed", "2"], "--max-failed 2 is no share"),
        (["--limit", "0"], "--limit 0 is less than one"),
        (["--total-tokens", "0"], "--total-tokens 0 is less than one"),
        (["--out", __file__], "is a file"),
        (["--temperature", "-1"], "--temperature is -1\n  It is a number at least 0."),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--top-p", "7"], "--top-p is 7\n  It is a number from 0 to 1."),
        (["--min-p", "-0.1"], "--min-p is -0.1"),
        (["--top-k", "0"], "--top-k is 0"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
        (["--presence-penalty", "inf"], "--presence-penalty is inf"),
        (["--request-timeout", "0"], "--request-timeout is 0"),
        (["--give-up-after", "nan"], "--give-up-after is nan"),
    ],
)
def test_options_that_make_no_sense(tmp_path, prompts, extra, said):
    words = ["--server", "http://127.0.0.1:9", *extra]
    assert said in generate(prompts(2), tmp_path / "out", check=2, extra=words)


def test_every_class_of_trouble_has_a_policy():
    assert set(POLICIES) == set(Trouble)
