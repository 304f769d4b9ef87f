"""`dflash generate` with a store: prompts from S3, shards to it as they are sealed."""

from __future__ import annotations

import json
import threading

import pytest

from dflash.__main__ import main
from dflash.completions import read_records, shard_paths
from dflash.files import sha256_file
from dflash.outbox import Outbox
from dflash.progress import Progress
from dflash.s3 import StoreOptions
from tests.support.completing import generate, going_on_when, rows_of
from tests.support.deadline import wait_for
from tests.support.s3 import s3, s3_keys, s3_server

__all__ = ["s3", "s3_keys", "s3_server"]


def names(s3, prefix="runs/a/"):
    rows = s3.list_objects_v2(Bucket=s3.bucket, Prefix=prefix).get("Contents", [])
    return {row["Key"].removeprefix(prefix) for row in rows}


def test_prompts_from_s3_and_shards_to_it(tmp_path, servers, prompts, s3):
    server, out = servers(), tmp_path / "out"
    s3.upload_file(str(prompts(20)), s3.bucket, "in/prompts.jsonl")
    extra = ["--upload", f"s3://{s3.bucket}/runs/a"]
    generate(f"s3://{s3.bucket}/in/prompts.jsonl", out, server, extra=extra)
    wanted = {"shard-00000.jsonl", "shard-00001.jsonl", "shard-00002.jsonl", "manifest.json"}
    assert names(s3) == {*wanted, ".objects.json"}
    # Whoever downloads it gets the very folder, proved by digests.
    assert main(["get", f"s3://{s3.bucket}/runs/a", str(tmp_path / "back")]) == 0
    for name in wanted:
        assert sha256_file(tmp_path / "back" / name) == sha256_file(out / name)
    assert len(list(read_records(shard_paths(tmp_path / "back")))) == 20
    # Again, and nothing is sent; more prompts, and only what is new.
    before = {row["Key"]: row["LastModified"] for row in objects(s3)}
    generate(prompts(20), out, server, extra=extra)
    assert {row["Key"] for row in objects(s3)} == set(before)
    generate(prompts(30), out, server, extra=extra)
    assert "shard-00003.jsonl" in names(s3)
    assert len(server.seen()) == 30


def objects(s3):
    return s3.list_objects_v2(Bucket=s3.bucket, Prefix="runs/a/")["Contents"]


def test_shards_arrive_while_the_run_goes_on(tmp_path, servers, prompts, s3):
    server, out = servers(), tmp_path / "out"
    server.faults(("none", 9), ("wait", 10**6))
    with going_on_when(lambda: "shard-00000.jsonl" in names(s3), server):
        generate(prompts(60), out, server, extra=["--upload", f"s3://{s3.bucket}/runs/a"])
    assert "shard-00008.jsonl" in names(s3)


@pytest.mark.parametrize(
    ("url", "said"),
    [("s3://nowhere/a", "no such bucket"), ("s3://some/a", "refuses us")],
    ids=["no-bucket", "wrong-key"],
)
def test_a_store_that_refuses_costs_no_row(tmp_path, servers, prompts, s3, monkeypatch, url, said):
    if said == "refuses us":
        monkeypatch.setenv("AWS_ENDPOINT_URL", refusing_store())
    server, out = servers(), tmp_path / "out"
    server.faults(("none", 9), ("wait", 10**6))
    start = Outbox.start

    def start_heard(outbox):
        tell = outbox._tell

        def told(text):
            tell(text)
            server.hurry()

        outbox._tell = told
        start(outbox)

    monkeypatch.setattr(Outbox, "start", start_heard)
    monkeypatch.setattr("dflash.outbox.PAUSES_S", (0.01,))
    text = generate(prompts(20), out, server, check=1, extra=["--upload", url])
    assert len(rows_of(out)) == 20
    assert json.loads((out / "manifest.json").read_text())["complete"] is True
    assert f"4 of 4 files are not in {url} (shard-00000.jsonl, shard-00001.jsonl" in text
    assert said in text
    assert "run the same command again: it sends what is missing" in text
    # Told at once as well, and not only after the last row.
    assert text.index(f"upload to {url} does not work yet") < text.index("20/20 rows")
    monkeypatch.undo()


def refusing_store():
    """A store that answers 403 to whatever it is asked."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Refusing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args):
            pass

        def refuse(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b"<Error><Code>InvalidAccessKeyId</Code><Message>no</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = refuse

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def test_an_upload_that_fails_for_a_while_is_caught_up_with(tmp_path, monkeypatch):
    """Told once, tried again in order, nothing twice."""
    out, tells = tmp_path / "out", []
    out.mkdir()
    outbox = Outbox(
        out, f"file://{tmp_path}/store", StoreOptions(), tell=tells.append, pauses=(0.01,)
    )
    send, failures = outbox._store.send, iter([True] * 5)

    def failing(*args):
        if next(failures, False):
            raise OSError(5, "the link is down")
        return send(*args)

    monkeypatch.setattr(outbox._store, "send", failing)
    entries = []
    for number in range(3):
        name = f"shard-0000{number}.jsonl"
        (out / name).write_bytes(b"{}\n" * (number + 1))
        entry = {"file": name, "bytes": 3 * (number + 1), "sha256": sha256_file(out / name)}
        entries.append(entry)
        outbox.offer(entry)
    outbox.start()
    wait_for(lambda: outbox.sent == 3, what="three shards sent")
    assert outbox.problem == ""
    assert any("the link is down" in text for text in tells)
    assert tells[-1] == "upload goes on: shard-00000.jsonl arrived"
    (out / "manifest.json").write_text("{}")
    assert outbox.close({"shards": entries}, Progress()) == []
    assert (tmp_path / "store" / "manifest.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("extra", "code", "said"),
    [
        (["--upload", "ftp://x/y"], 2, "no address of objects"),
        (["--upload", "s3://"], 2, "names no bucket"),
        (["--prompts", "s3://BUCKET/in/none.jsonl"], 1, "there is no prompt file at"),
        (["--prompts", "s3://BUCKET"], 2, "names no object"),
    ],
)
def test_a_wrong_address_is_told_at_once(tmp_path, servers, prompts, s3, extra, code, said):
    server = servers()
    words = [word.replace("BUCKET", s3.bucket) for word in extra]
    text = generate(prompts(3), tmp_path / "out", server, check=code, extra=words)
    assert said in text
    assert server.seen() == []
