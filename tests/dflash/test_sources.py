"""Completions from plain folders and from S3, in shares, and what is wrong with them."""

from __future__ import annotations

import json
import pathlib
import socket
import threading

import pytest

from dflash import sources
from dflash.__main__ import main
from dflash.completions import CompletionStore
from dflash.errors import DflashError, InputInvalid
from dflash.progress import Progress
from dflash.s3_store import S3Store
from dflash.shards import TokenizedSet
from dflash.tokenize import merge, tokenize
from tests.dflash.test_tokenize import digests
from tests.support.s3 import s3, s3_keys, s3_server

__all__ = ["s3", "s3_keys", "s3_server"]

ASSETS = pathlib.Path(__file__).parents[1] / "assets"
MODEL = ASSETS / "smollm2"


@pytest.fixture(autouse=True)
def load_once(monkeypatch, load_tokenizer):
    for module in ("tokenize", "parts"):
        monkeypatch.setattr(
            f"dflash.{module}.TargetTokenizer",
            lambda path, *, fast=True: load_tokenizer(pathlib.Path(path)),
        )


def record(number, **more):
    return {
        "id": f"r{number:04d}",
        "messages": [{"role": "user", "content": f"q {number}"}],
        "completion": f"answer {number}",
        "finish_reason": "stop",
        **more,
    }


def store(folder, count, *, shard_rows=10):
    with CompletionStore(folder, settings={"model": "m"}, shard_rows=shard_rows) as made:
        for number in range(count):
            made.add(record(number))
        made.finish(complete=True, failed=0)
    return folder


def test_folders_of_several_machines_make_one_set(tmp_path):
    """Both have a shard 0 of their own; together they are every row, once."""
    for machine, numbers in (("a", range(25)), ("b", range(25, 60))):
        settings = {"model": "m", "thinking": "off"}
        with CompletionStore(tmp_path / "all" / machine, settings=settings, shard_rows=10) as made:
            for number in numbers:
                made.add(record(number))
            made.finish(complete=True, failed=0)
    out = tmp_path / "set"
    tokenize(
        completions=tmp_path / "all", tokenizer=MODEL, out=out, shares={"train": 1.0},
        min_heldout=0, progress=Progress(),
    )  # fmt: skip
    found = TokenizedSet(out)
    assert sorted(found.row(n).id for n in range(len(found))) == [f"r{n:04d}" for n in range(60)]


def test_folders_of_other_settings_are_no_one_set(tmp_path):
    for machine in ("a", "b"):
        with CompletionStore(tmp_path / machine, settings={"model": machine}, shard_rows=2) as made:
            made.add(record(1))
            made.finish(complete=True, failed=0)
    with pytest.raises(InputInvalid, match="other settings"):
        sources.open_source(str(tmp_path))


def plain(folder, files):
    folder.mkdir(parents=True)
    for name, rows in files.items():
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def run(source, out, **options):
    return tokenize(completions=source, tokenizer=MODEL, out=out, progress=Progress(), **options)


def command(*words):
    return main(["tokenize", "--tokenizer", str(MODEL), *map(str, words)])


# ---- plain folders, bad rows ---------------------------------------------------------------------


def test_a_folder_of_json_lines_is_enough(tmp_path, capsys):
    rows = {"a.jsonl": map(record, range(20)), "b.jsonl": map(record, range(20, 30))}
    assert command("--completions", plain(tmp_path / "in", rows), "--out", tmp_path / "set") == 0
    shown = capsys.readouterr().out
    assert "loss tokens" in shown
    assert "left out: 0 too long, 0 unusable" in shown
    assert (
        len(TokenizedSet(tmp_path / "set")) + len(TokenizedSet(tmp_path / "set", "heldout")) == 30
    )


BAD = {
    "corrupt line": (b'{"id": "x", "messa', "no JSON"),
    "wrong encoding": ('{"id": "x", "completion": "Köln"}'.encode("latin-1"), "not UTF-8"),
    "two-byte encoding": (json.dumps(record(1)).encode("utf-16"), "not UTF-8"),
    "no id": ({"messages": [], "completion": "x"}, "no id"),
    "no messages": ({"id": "x", "completion": "y"}, "no list of messages"),
    "no answer": (
        {"id": "x", "messages": [{"role": "user", "content": "q"}]},
        "neither completion",
    ),
    "nothing generated": (record(9, completion="", finish_reason="length"), "no generated token"),
    "answer of parts": (record(9, completion=["a"]), "its completion is no text"),
    "ids that are none": (record(9, output_ids=[1, "two"]), "output_ids is no list of whole"),
    "not an object": (b"[1, 2]", "a list, not an object"),
    "role the template refuses": (record(9, messages=[{"content": "q"}]), "messages with roles"),
}


@pytest.mark.parametrize("kind", BAD)
def test_rows_that_cannot_be_used_are_named_and_counted(tmp_path, capsys, kind):
    row, words = BAD[kind]
    good = [record(number) for number in range(12)]
    files = {"a.jsonl": [*good[:6], row, row], "b.jsonl": good[6:], "c.jsonl": [row]}
    out = tmp_path / "set"
    assert command("--completions", plain(tmp_path / "in", files), "--out", out) == 1
    said = capsys.readouterr().err
    assert "3 rows in 2 files cannot be used" in said
    assert "a.jsonl:7: " in said
    assert words in said
    assert "Traceback" not in said
    assert not (out / "manifest.json").exists()
    assert {p.name for p in out.rglob("*.arrow")} == {"b.arrow"}  # the whole file is kept, no other
    assert command(
        "--completions", tmp_path / "in", "--out", out, "--bad-rows", "skip", "--split", "train=1"
    ) == 0  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["counts"]["skipped_bad"] == 3
    assert manifest["source"]["rows"] == 15
    assert "3 unusable" in capsys.readouterr().out


def test_an_empty_file_and_a_file_cut_in_half(tmp_path, capsys):
    good = [record(number) for number in range(12)]
    folder = plain(tmp_path / "in", {"a.jsonl": good, "b.jsonl": []})
    assert command("--completions", folder, "--out", tmp_path / "set") == 1
    assert "b.jsonl: found no line in it" in capsys.readouterr().err
    (folder / "b.jsonl").write_bytes((folder / "a.jsonl").read_bytes()[:500])
    assert command("--completions", folder, "--out", tmp_path / "set") == 1
    assert "b.jsonl:5: no JSON" in capsys.readouterr().err
    assert not (tmp_path / "set" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--completions", "EMPTY"], "holds neither a manifest.json nor *.jsonl files"),
        (["--completions", "s3://"], "names no bucket"),
        (["--completions", "EMPTY", "--shard", "5/4"], "goes from 1 to the second"),
        (["--completions", "EMPTY", "--shard", "x"], "is no I/N"),
        (["--completions", "EMPTY", "--template-kwargs", "{"], "is no JSON"),
        (["--completions", "EMPTY", "--max-length", "1"], "leaves no room"),
        (["--merge", "EMPTY"], "there is no manifest of a share"),
    ],
)
def test_wrong_words_end_with_one_message(tmp_path, capsys, words, message):
    (tmp_path / "empty").mkdir()
    filled = [str(tmp_path / "empty") if word == "EMPTY" else word for word in words]
    assert command(*filled, "--out", tmp_path / "set") in (1, 2)
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) <= 2


# ---- shares --------------------------------------------------------------------------------------


def test_shares_of_several_hosts_merge_into_what_one_would_have_made(tmp_path):
    source = store(tmp_path / "in", 130)
    whole = run(source, tmp_path / "whole", min_heldout=0)
    for number in (1, 2, 3):
        run(source, tmp_path / f"s{number}", share=(number, 3), min_heldout=0)
    with pytest.raises(InputInvalid, match="has format 'dflash-tokenized-share/1'"):
        TokenizedSet(tmp_path / "s1")
    merged = merge(
        [tmp_path / f"s{n}" for n in (3, 1, 2)], tmp_path / "merged", progress=Progress()
    )
    assert merged == whole
    assert digests(tmp_path / "merged") == digests(tmp_path / "whole")


def test_shares_that_do_not_belong_together(tmp_path):
    source = store(tmp_path / "in", 40)
    run(source, tmp_path / "s1", share=(1, 2))
    run(source, tmp_path / "s2", share=(2, 2), max_length=500)
    folders = [tmp_path / "s1", tmp_path / "s2"]
    with pytest.raises(InputInvalid, match="max_length differs"):
        merge(folders, tmp_path / "m", progress=Progress())
    with pytest.raises(InputInvalid, match="shares 1/2 were given, 1/2 to 2/2 are needed"):
        merge(folders[:1], tmp_path / "m", progress=Progress())
    run(source, tmp_path / "s2", share=(2, 2))
    shard = next((tmp_path / "s2").rglob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(InputInvalid, match="is not what its part says"):
        merge(folders, tmp_path / "m", progress=Progress())
    assert not (tmp_path / "m" / "manifest.json").exists()


# ---- S3 ------------------------------------------------------------------------------------------


@pytest.fixture
def client(s3, monkeypatch):
    monkeypatch.setattr("dflash.s3.TRIES", 1)
    s3.create_bucket(Bucket="bucket")
    yield s3
    for entry in s3.list_objects_v2(Bucket="bucket").get("Contents", ()):
        s3.delete_object(Bucket="bucket", Key=entry["Key"])


def upload(client, folder, prefix="run/done/"):
    for path in folder.iterdir():
        if path.is_file():
            client.upload_file(str(path), "bucket", prefix + path.name)
    return f"s3://bucket/{prefix}".rstrip("/")


def test_a_set_from_s3_is_the_set_from_the_folder(tmp_path, client):
    source = store(tmp_path / "in", 100, shard_rows=4)
    where = upload(client, source)
    assert run(source, tmp_path / "a") == run(where, tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_downloads_run_side_by_side_and_a_bounded_number_ahead(tmp_path, client, monkeypatch):
    where = upload(client, store(tmp_path / "in", 100, shard_rows=1))
    monkeypatch.setattr(sources, "AHEAD", 20)
    together = threading.Barrier(8, timeout=60)  # breaks unless eight are under way at once
    asked, lying = [], []
    real = S3Store.fetch

    def fetch(self, name, *args):
        asked.append(name)
        if len(asked) <= 8:
            together.wait()
        return real(self, name, *args)

    monkeypatch.setattr(S3Store, "fetch", fetch)
    source = sources.open_source(where)
    for path in source.arriving(source.entries, tmp_path / "inbox"):
        lying.append(len(list((tmp_path / "inbox").glob("shard*"))))
        path.unlink()
    assert len(lying) == 100
    assert max(lying) <= 20


def test_json_lines_in_s3_without_a_manifest(tmp_path, client):
    folder = plain(tmp_path / "in", {"a.jsonl": map(record, range(100))})
    manifest = run(upload(client, folder), tmp_path / "set", min_heldout=0)
    assert sum(split["rows"] for split in manifest["splits"].values()) == 100
    assert not (tmp_path / "set" / ".inbox").exists()


def test_an_object_cut_short_or_missing_is_named(tmp_path, client, capsys):
    where = upload(client, store(tmp_path / "in", 30))
    key = "run/done/shard-00001.jsonl"
    client.put_object(Bucket="bucket", Key=key, Body=b'{"id":')
    assert command("--completions", where, "--out", tmp_path / "set") == 1
    assert f"s3://bucket/{key} is not what was uploaded: 6 bytes" in capsys.readouterr().err
    client.delete_object(Bucket="bucket", Key=key)
    assert command("--completions", where, "--out", tmp_path / "set") == 1
    assert "lacks 1 of 3 files, first shard-00001.jsonl" in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))[1:]


def test_no_such_bucket(client, tmp_path, capsys):
    assert command("--completions", "s3://nowhere/x", "--out", tmp_path / "set") == 1
    said = capsys.readouterr().err
    assert "s3://nowhere/x: there is no such bucket" in said


def test_a_server_that_refuses_and_one_that_hangs_up(tmp_path, client, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert command("--completions", "s3://bucket/x", "--out", tmp_path / "set") == 1
    said = capsys.readouterr().err
    assert "s3://bucket/x gives no answer: Could not connect" in said
    with pytest.raises(DflashError):
        sources.open_source("s3://bucket/x")
