"""`dflash generate` against real server processes: faults, kills, resumption, torn files."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from dflash.answers import split_thinking
from dflash.client import Settings, seed_for
from dflash.completions import CompletionStore, shard_paths
from dflash.errors import DflashError, InputInvalid
from dflash.prompts import load_prompts
from tests.support.completing import command, count_rows, generate, going_on_when, lines_of, rows_of
from tests.support.deadline import wait_for

FOR_EVER = 10**6


def test_two_servers_share_the_work(tmp_path, servers, prompts, monkeypatch):
    first, second = servers(), servers()
    for server in (first, second):
        server.faults(("none", 6), ("wait", FOR_EVER))
    out, lines = tmp_path / "out", tmp_path / "progress.jsonl"
    monkeypatch.setenv("RUNBOOK_PROGRESS", str(lines))
    with going_on_when(lambda: min(len(s.seen()) for s in (first, second)) >= 8, first, second):
        generate(prompts(40), out, first, second)
    rows = rows_of(out)
    assert sorted(row["id"] for row in rows) == [f"p{n:03d}" for n in range(40)]
    assert len(first.seen()) + len(second.seen()) == 40
    row = rows[0]
    assert row["completion"].endswith("<|im_end|>")
    assert not row["content"].endswith("<|im_end|>")
    assert row["output_ids"][-1] == 2
    assert row["usage"]["completion_tokens"] == len(row["output_ids"])
    assert "".join(map(chr, row["input_ids"])) == row["messages"][-1]["content"]
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["complete"]
    assert [entry["rows"] for entry in manifest["shards"]] == [7, 7, 7, 7, 7, 5]
    events = [json.loads(line) for line in lines.read_text().splitlines()]
    assert events[-1]["kind"] == "done"
    assert events[-1]["done"] == events[-1]["total"] == 40
    counts = events[-1]["metrics"]["servers"]
    assert sum(server["done"] for server in counts.values()) == 40


def test_request_carries_what_exact_text_needs(tmp_path, servers, prompts):
    server = servers()
    extra = ["--thinking", "on", "--seed", "5", "--system", "Be brief.", "--max-tokens", "9"]
    generate(prompts(1), tmp_path / "out", server, extra=extra)
    body = server.seen()[0]["body"]
    assert body["return_token_ids"] is True
    assert body["separate_reasoning"] is False
    assert body["skip_special_tokens"] is False
    assert body["no_stop_trim"] is True
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert body["seed"] == seed_for(5, "p000")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    (row,) = rows_of(tmp_path / "out")
    assert row["finish_reason"] == "length"
    assert row["messages"] == body["messages"]


@pytest.mark.parametrize(
    "kind", ["503", "429", "502", "500", "reset", "abort", "garbage", "duplicate"]
)
def test_passing_faults_cost_nothing(tmp_path, servers, prompts, kind):
    server, other = servers(), servers()
    server.faults((kind, 3))
    generate(prompts(20), tmp_path / "out", server, other)
    rows = rows_of(tmp_path / "out")
    assert len({row["id"] for row in rows}) == len(rows) == 20
    assert all(row["finish_reason"] == "stop" for row in rows)


def test_trouble_of_a_second_does_not_use_up_the_attempts(tmp_path, servers, prompts, start):
    server = servers()
    server.faults(("500", 1000))
    job = start(command(prompts(2), tmp_path / "out", server))
    wait_for(lambda: len(server.seen()) >= 4, what="two attempts of each")
    server.faults()
    assert job.wait(timeout=60) == 0
    assert len(rows_of(tmp_path / "out")) == 2


def test_refused_prompt_is_recorded_not_repeated(tmp_path, servers, prompts):
    server = servers()
    path = prompts(10)
    row = {"id": "long", "messages": [{"role": "user", "content": "too long"}]}
    path.write_text(json.dumps(row) + "\n" + path.read_text())
    out = tmp_path / "out"
    text = generate(path, out, server, check=1)
    assert "1 of 11 prompts got no answer" in text
    assert "9000 tokens" in text
    assert sum(seen["prompt"] == "too long" for seen in server.seen()) == 1
    assert json.loads((out / "quarantine.jsonl").read_text())["id"] == "long"
    assert json.loads((out / "manifest.json").read_text())["complete"] is False
    generate(path, out, server, extra=["--max-failed", "0.2"])
    assert len(rows_of(out)) == 10
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["complete"], manifest["failed"]) == (True, 1)


def test_more_prompts_open_the_folder_again(tmp_path, servers, prompts):
    server, out = servers(), tmp_path / "out"
    generate(prompts(5), out, server)
    extra = ["--give-up-after", "0.2"]
    generate(prompts(8), out, "http://127.0.0.1:9", check=1, extra=extra)
    assert json.loads((out / "manifest.json").read_text())["complete"] is False
    generate(prompts(8), out, server)
    assert json.loads((out / "manifest.json").read_text())["complete"] is True
    assert len(rows_of(out)) == 8
    assert len(server.seen()) == 8


def test_all_refused_stops_early(tmp_path, servers, prompts):
    server = servers()
    text = generate(prompts(60, text="too long {}"), tmp_path / "out", server, check=1)
    assert "each of the first 20 prompts was refused" in text
    assert len(server.seen()) <= 24


def test_server_that_dies_leaves_its_work_to_the_other(tmp_path, servers, prompts):
    dying, other = servers("--delay", "0.01"), servers("--delay", "0.01")
    dying.faults(("none", 5), ("die", 1))
    generate(prompts(40), tmp_path / "out", dying, other)
    assert len({row["id"] for row in rows_of(tmp_path / "out")}) == 40


def test_server_that_comes_back_is_used_again(tmp_path, servers, prompts, start):
    server = servers("--delay", "0.05")
    server.faults(("none", 5), ("die", 1))
    job = start(command(prompts(30), tmp_path / "out", server))
    server.process.wait(timeout=60)
    server.start()
    assert job.wait(timeout=60) == 0
    assert len({row["id"] for row in rows_of(tmp_path / "out")}) == 30


def test_nobody_answers(tmp_path, prompts):
    out = tmp_path / "out"
    extra = ["--give-up-after", "1"]
    text = generate(prompts(3), out, "http://127.0.0.1:9", check=1, extra=extra)
    assert "no server answered for 1 s" in text
    assert "run the same command again" in text


def test_another_model_on_that_port(tmp_path, servers, prompts):
    server = servers("--served", "other")
    text = generate(prompts(3), tmp_path / "out", server, check=1)
    assert "serves 'other', not 'toy'" in text
    assert server.seen() == []


def test_wedged_server_loses_its_requests(tmp_path, servers, prompts):
    """Asked in-process, for a patience no command line would take."""
    from dflash.client import Settings
    from dflash.dispatch import Limits
    from dflash.generate import generate as run
    from dflash.progress import Progress
    from dflash.prompts import PromptFile
    from dflash.servers import ServerList

    wedged, other = servers(), servers()
    wedged.faults(("hang", 50), health=503)
    manifest = run(
        prompts=PromptFile(prompts(12)),
        servers=ServerList([wedged.url, other.url]),
        settings=Settings(model="toy", sampling={"max_tokens": 100}),
        out=tmp_path / "out",
        limits=Limits(concurrency=3, quiet_before_probe=0.2, attempts=9),
        progress=Progress(),
    )
    assert manifest["rows"] == 12
    assert {row["server"] for row in rows_of(tmp_path / "out")} == {other.url}


def test_openai_api_says_that_ids_are_missing(tmp_path, servers, prompts):
    server = servers("--api", "openai")
    extra = ["--api", "openai"]
    text = generate(prompts(3), tmp_path / "out", server, extra=extra)
    assert "no token ids" in text
    row = rows_of(tmp_path / "out")[0]
    assert "output_ids" not in row
    assert set(server.seen()[0]["body"]) == {
        "model", "messages", "stream", "max_tokens", "temperature",
    }  # fmt: skip
    assert "this is no SGLang server" in generate(prompts(3), tmp_path / "other", server, check=1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_at_any_point_goes_on(tmp_path, servers, prompts, start, number):
    server, path, out = servers(), prompts(60), tmp_path / "out"
    for rows in (5, 16, 21):
        server.faults(("none", rows - count_rows(out)), ("wait", FOR_EVER))
        job = start(command(path, out, server), stderr=subprocess.PIPE)
        wait_for(lambda rows=rows: count_rows(out) == rows, what="rows on disk")
        job.send_signal(number)
        _, text = job.communicate(timeout=60)
        assert job.returncode == (-9 if number == signal.SIGKILL else 75), text
        assert count_rows(out) == rows
    server.hurry()
    generate(path, out, server)
    rows = rows_of(out)
    assert sorted(row["id"] for row in rows) == [f"p{n:03d}" for n in range(60)]
    # A kill costs at most what was in flight.
    assert len(server.seen()) <= 60 + 3 * 4


def test_corrupt_prompt_line(tmp_path, servers, prompts):
    server = servers()
    path, out = prompts(9), tmp_path / "out"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4][:-20], *lines[5:]]) + "\n")
    text = generate(path, out, server, check=1)
    assert f"{path}:5: found no JSON" in text
    assert "line 5" in text
    assert not out.exists()
    assert server.seen() == []
    path.write_text("\n".join(lines) + "\n")
    generate(path, out, server)
    assert len(rows_of(out)) == 9


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"id": "a"}', "no list of messages"),
        ('{"id": 7, "messages": []}', "an id of 7"),
        ('{"prompt": "x"}', "found no id"),
        ('{"id": "a", "messages": [{"role": "robot", "content": "x"}]}', "role 'robot'"),
        ('{"id": "a", "messages": [{"role": "user", "content": null}]}', "content is no text"),
        ('{"id": "a", "messages": [{"role": "assistant", "content": "x"}]}', "nothing to answer"),
        ('["a"]', "a list, not an object"),
        ('{"id": "ok", "messages": [{"role": "user", "content": "x"}]}', "that line 1 has"),
    ],
)
def test_prompt_that_is_none(tmp_path, line, found):
    path = tmp_path / "prompts.jsonl"
    good = '{"id": "ok", "messages": [{"role": "user", "content": "hé 🙂"}]}'
    path.write_text(f"{good}\n\n{line}\n")
    with pytest.raises(InputInvalid) as error:
        load_prompts(path)
    assert found in error.value.message
    assert f"{path}:3" in error.value.message


def test_prompt_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"id": "\xff"}\n')
    with pytest.raises(InputInvalid, match="not UTF-8 at column 9"):
        load_prompts(path)


def record(name):
    return {"id": name, "messages": [{"role": "user", "content": name}], "completion": name}


def open_store(path, **settings):
    return CompletionStore(path, settings=settings or {"model": "toy"}, shard_rows=3)


def test_torn_tail_is_cut(tmp_path):
    with open_store(tmp_path) as store:
        store.add(record("a"))
    with (tmp_path / "inflight.jsonl").open("ab") as handle:
        handle.write(b'{"id": "b", "messa')
    (tmp_path / ".manifest.json.17.part").write_text("a killed writer's")
    with open_store(tmp_path) as store:
        assert set(store.done) == {"a"}
        store.add(record("b"))
        store.finish(complete=True, failed=0)
    assert [row["id"] for row in rows_of(tmp_path)] == ["a", "b"]
    assert not list(tmp_path.glob(".*.part"))


def test_kill_between_shard_and_manifest(tmp_path, monkeypatch):
    """The shard is renamed, the manifest does not know it, inflight still has the same rows."""
    with open_store(tmp_path) as store:
        store.add(record("a"))
        store.add(record("b"))
        monkeypatch.setattr(CompletionStore, "_write_manifest", _killed)
        with pytest.raises(KeyboardInterrupt):
            store.add(record("c"))
    monkeypatch.undo()
    assert len(lines_of(tmp_path / "inflight.jsonl")) == 3
    with open_store(tmp_path) as store:
        assert store.notices == []
        store.add(record("d"))
        store.finish(complete=True, failed=0)
    assert [row["id"] for row in rows_of(tmp_path)] == ["a", "b", "c", "d"]


def _killed(_self):
    raise KeyboardInterrupt


def test_damaged_shard_is_saved_row_by_row(tmp_path):
    with open_store(tmp_path) as store:
        for name in "abcdef":
            store.add(record(name))
    shard = tmp_path / "shard-00000.jsonl"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(InputInvalid, match="the manifest says"):
        shard_paths(tmp_path)
    with open_store(tmp_path) as store:
        assert set(store.done) == set("abdef")
        assert "2 of 3 rows are readable" in store.notices[0]
        store.add(record("c"))
        store.finish(complete=True, failed=0)
    assert sorted(row["id"] for row in rows_of(tmp_path)) == list("abcdef")
    assert (tmp_path / "shard-00000.jsonl.damaged").is_file()


def test_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    with open_store(tmp_path) as store:
        store.add(record("a"))
        tail = store._tail

        class Full:
            def tell(self):
                return tail.tell()

            def write(self, data):
                tail.write(data[:11])
                return 11

            def close(self):
                tail.close()

        monkeypatch.setattr(store, "_tail", Full())
        with pytest.raises(OSError, match="No space left") as error:
            store.add(record("b"))
        assert error.value.filename == str(tmp_path / "inflight.jsonl")
    assert [json.loads(line)["id"] for line in lines_of(tmp_path / "inflight.jsonl")] == ["a"]


def test_other_settings_are_refused(tmp_path):
    with open_store(tmp_path, model="toy", thinking="on"):
        pass
    with pytest.raises(DflashError, match="thinking 'on' -> 'off'"):
        open_store(tmp_path, model="toy", thinking="off")


def test_changed_prompt_is_refused(tmp_path, servers, prompts):
    server, out = servers(), tmp_path / "out"
    generate(prompts(3), out, server)
    text = generate(prompts(3, text="another {}"), out, server, check=1)
    assert "3 prompts, first 'p000', differ" in text


def test_one_writer(tmp_path):
    with open_store(tmp_path), pytest.raises(DflashError, match="another process writes"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\na\n</think>\n\nb<|im_end|>", ("\na\n", "\n\nb")),
        ("a\n</think>\n\nb<|im_end|>", ("a\n", "\n\nb")),
        ("<think>cut", ("cut", "")),
        ("plain</s>", (None, "plain")),
        ("<think>\n\n</think>\n\n🙂", ("\n\n", "\n\n🙂")),
    ],
)
def test_split_thinking(text, expected):
    assert split_thinking(text) == expected


def test_settings_do_not_change_meaning_by_order():
    one = Settings(model="m", sampling={"a": 1, "b": 2}).as_dict()
    other = Settings(model="m", sampling={"b": 2, "a": 1}).as_dict()
    assert one == other
