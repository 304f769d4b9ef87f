"""Keys that end while a job runs: nothing is lost, nothing goes twice, new ones are taken up."""

from __future__ import annotations

import json
import os
import threading
import time
from types import SimpleNamespace

import boto3
import pytest

from dflash import keys, outbox, upload
from dflash.__main__ import main
from dflash.bodies import LARGE
from dflash.errors import EXIT_KEYS
from dflash.progress import Progress
from dflash.s3 import KeysExpired, StoreOptions
from dflash.s3_store import S3Store
from dflash.sync import sync
from dflash.train import train
from dflash.train_config import TrainConfig
from tests.support.completing import generate, rows_of
from tests.support.deadline import wait_for
from tests.support.s3 import s3_keys
from tests.support.s3_ending import ending, temporary_keys
from tests.support.tiny_runs import make_inputs, options

__all__ = ["ending", "s3_keys"]

HOUR = 3600.0


class Job:
    """A job's directory, and whoever hands keys to it."""

    def __init__(self, folder, store):
        self.file = folder / "job" / keys.FILE
        self.file.parent.mkdir(parents=True)
        self.url = store.url

    def hand(self, *, end=None):
        now = time.time()
        found = {
            "since": now,
            "end": now + HOUR if end is None else end,
            "values": temporary_keys(self.url),
        }
        aside = self.file.with_suffix(".tmp")
        aside.write_text(json.dumps(found))
        aside.rename(self.file)


@pytest.fixture
def job(tmp_path, ending, monkeypatch):
    found = Job(tmp_path, ending)
    for name, value in temporary_keys(ending.url).items():
        monkeypatch.setenv(name, value)
    now = time.time()
    monkeypatch.setenv(keys.SPAN, f"{now:.0f} {now + HOUR:.0f}")
    monkeypatch.setenv(keys.JOB, str(tmp_path / "job"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", ending.url)
    return found


def stored(store, prefix="runs/a/"):
    client = boto3.client("s3", endpoint_url=store.url, aws_access_key_id="owner",
                          aws_secret_access_key="of-the-bucket")  # fmt: skip
    rows = client.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return {row["Key"].removeprefix(prefix) for row in rows}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


UPLOAD = ["--upload", "s3://bucket/runs/a", "--short-lived-only"]


def test_a_run_goes_on_without_keys_and_sends_all_with_new_ones(
    tmp_path, servers, prompts, ending, job, monkeypatch
):
    server, out, progress = servers(), tmp_path / "out", tmp_path / "progress"
    server.faults(("none", 9), ("wait", 10**6))
    progress.touch()
    monkeypatch.setenv("RUNBOOK_PROGRESS", str(progress))

    def operator():
        wait_for(lambda: stored(ending), limit_s=60, what="the first shard")
        ending.end()
        server.hurry()
        wait_for(lambda: "for s3://bucket/runs/a have run out" in progress.read_text(), what="told")
        wait_for(lambda: (out / "shard-00005.jsonl").exists(), what="more shards without keys")
        job.hand()

    watching = threading.Thread(target=operator)
    watching.start()
    generate(prompts(60), out, server, extra=UPLOAD)
    watching.join()
    assert ending.keys == 2
    assert ending.refused
    shards = {path.name for path in out.glob("shard-*.jsonl")}
    assert stored(ending) == {*shards, "manifest.json", ".objects.json"}
    assert set(ending.puts.values()) == {1}, "nothing went twice"
    said = lines(progress)
    dead = [one for one in said if one["metrics"].get("keys") == "expired"]
    assert max(one["metrics"]["to_upload"] for one in dead) >= 2
    assert any("shards wait here" in one["message"] for one in dead)
    assert said[-1]["metrics"]["keys"].startswith("until 2")


def test_a_run_that_has_nothing_left_but_uploads_ends_for_want_of_keys(
    tmp_path, servers, prompts, ending, job, monkeypatch
):
    monkeypatch.setattr(outbox, "KEYS_PATIENCE_S", 0.2)
    server, out = servers(), tmp_path / "out"
    ending.uploads = 1
    text = generate(prompts(30), out, server, check=EXIT_KEYS, extra=UPLOAD)
    assert "have run out" in text
    assert "All rows are kept here" in text
    before = rows_of(out)
    assert len(before) == 30
    ending.uploads = None
    job.hand()
    generate(prompts(30), out, server, extra=UPLOAD)
    assert rows_of(out) == before, "asked for once"
    assert len(server.seen()) == 30
    assert len(stored(ending)) == len(list(out.glob("shard-*.jsonl"))) + 2
    assert set(ending.puts.values()) == {1}


def test_a_torn_file_of_keys_changes_nothing(ending, job):
    store = S3Store("s3://bucket/x", StoreOptions())
    for text in ("", "{", "[]", '{"since": 1, "end": 2}', '{"since":0,"end":null,"values":{}}'):
        job.file.write_text(text)
        store.write("a", b"1")
        assert store.read("a") == b"1"


@pytest.mark.parametrize("fast", [True, False], ids=["obstore", "boto3"])
def test_the_newest_keys_sign_each_request(ending, job, fast):
    store = S3Store("s3://bucket/x", StoreOptions(), fast=fast)
    for number in range(3):
        store.write(f"f{number}", b"1")
        ending.end()
        for ask in (lambda: store.write("never", b"2"), lambda: store.read("f0"), store.listed):
            with pytest.raises(KeysExpired):
                ask()
        job.hand()
    assert set(store.listed()) == {"f0", "f1", "f2"}
    assert ending.keys == 4


@pytest.mark.parametrize("size", [1, LARGE], ids=["obstore", "signed"])
def test_new_keys_are_used_at_once_though_the_old_ones_hold(ending, job, size):
    """They are handed out before the old ones end, which may be now."""
    store = S3Store("s3://bucket/x", StoreOptions())
    for number in range(3):
        store.write(f"f{number}", bytes(size))
        job.hand()
    assert ending.keys == 3
    assert ending.refused == 0


@pytest.mark.parametrize("behind_s", [0, 120])
def test_a_refusal_after_the_end_is_for_want_of_keys_whatever_it_says(
    ending, job, monkeypatch, behind_s
):
    """A HEAD is refused without a word, and some stores forget keys that ended."""
    ours = SimpleNamespace(time=lambda: time.time() - behind_s)
    monkeypatch.setattr(keys, "time", ours)
    job.hand(end=time.time() - 1)
    store = S3Store("s3://bucket/x", StoreOptions())
    store.write("f", b"1")
    ending.end()
    with pytest.raises(KeysExpired):
        store.digest("f")


def test_a_folder_that_grows_is_followed_without_keys(tmp_path, ending, job):
    folder = tmp_path / "grows"
    folder.mkdir()
    (folder / "a").write_text("a")
    progress = tmp_path / "progress"
    progress.touch()

    def others():
        wait_for(lambda: "a" in stored(ending), what="the first file")
        ending.end()
        (folder / "b").write_text("b")
        wait_for(lambda: "have run out" in progress.read_text(), what="told")
        job.hand()
        wait_for(lambda: "b" in stored(ending), what="the second file")
        (folder / "end").write_text("")

    writing = threading.Thread(target=others)
    writing.start()
    sync(
        folder, "s3://bucket/runs/a", StoreOptions(), until="end", every_s=0.05, settle_s=0,
        progress=Progress(progress),
    )  # fmt: skip
    writing.join()
    assert stored(ending) == {"a", "b", "end", ".objects.json"}


def test_an_upload_whose_keys_end_says_so_by_its_exit_code(tmp_path, ending, job, capsys):
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(5):
        (folder / f"f{number}").write_bytes(os.urandom(100))
    ending.uploads = 2
    words = ["put", str(folder), "s3://bucket/runs/a", "--connections", "1"]
    assert main(words) == EXIT_KEYS
    assert "the keys have run out" in capsys.readouterr().err
    assert len(stored(ending)) == 2
    job.hand()
    ending.uploads = None
    assert main(words) == 0
    assert set(ending.puts.values()) == {1}


def test_a_training_whose_last_upload_found_dead_keys_is_sent_by_the_next_run(
    tmp_path, ending, job, monkeypatch
):
    monkeypatch.setattr(upload, "PAUSES_S", (0.05,))
    ending.uploads = 1
    inputs = make_inputs(tmp_path / "inputs")
    config = TrainConfig.from_json(
        options(inputs, tmp_path / "out", steps=2, upload="s3://bucket/runs/a",
                endpoint=ending.url, region="us-east-1", short_lived_only=True)
    )  # fmt: skip
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with pytest.raises(KeysExpired, match="trained, but not uploaded") as ended:
        train(config)
    assert ended.value.exit_code == EXIT_KEYS
    assert (tmp_path / "out" / "step-000002" / "model.safetensors").is_file()
    assert "latest" not in stored(ending)
    ending.uploads = None
    job.hand()
    trained = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    summary = train(config)
    assert summary["upload"] == {
        "url": "s3://bucket/runs/a", "latest": "step-000002", "problem": None
    }  # fmt: skip
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == trained, "nothing was done again"
    assert {"latest", "step-000002/model.safetensors"} <= stored(ending)
    puts = dict(ending.puts)
    assert train(config) == summary
    assert dict(ending.puts) == puts, "and nothing is sent again"


@pytest.mark.parametrize("own", [False, True], ids=["handed", "long-lived"])
def test_completions_come_from_a_store_with_the_keys_of_the_job(
    tmp_path, ending, job, monkeypatch, capsys, own
):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    if own:
        for name in (keys.SPAN, "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name)
    words = ["tokenize", "--completions", "s3://bucket/none", "--tokenizer", "x", "--out",
             str(tmp_path / "set"), "--endpoint", ending.url, "--short-lived-only"]  # fmt: skip
    assert main(words) == 1
    said = capsys.readouterr().err
    assert ("long-lived" if own else "holds neither a manifest.json") in said
    assert ending.keys == (0 if own else 1)


def test_when_keys_end_soon_is_told(job):
    assert keys.late() == ""
    now = time.time()
    job.file.write_text(json.dumps({"since": now - 9, "end": now + 1, "values": {}}))
    assert "let `runbook run` or `runbook watch` bring others" in keys.late()
    assert keys.told(refused=False).startswith("until 2")


def test_without_handed_keys_the_usual_chain_stays(s3_keys, monkeypatch):
    assert keys.newest() is None
    assert keys.told(refused=True) == ""
    assert keys.boto_session().get_credentials().method == "env"
