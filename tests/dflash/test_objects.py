"""Folders to and from objects: a moto server on loopback and folders, killed and damaged."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.httpsession import URLLib3Session
from moto.s3.models import s3_backends

from dflash.__main__ import main
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.get import get
from dflash.objects import MANIFEST, open_store
from dflash.progress import Progress
from dflash.put import put
from dflash.s3 import StoreOptions
from dflash.s3_store import Listed, S3Store
from tests.benchmarks import s3_sink
from tests.support.line import Line
from tests.support.s3 import killed_in_the_middle, s3, s3_keys, s3_server

__all__ = ["s3", "s3_keys", "s3_server"]

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60
MIB = 1 << 20
SMALL_PARTS = StoreOptions(part=5 * MIB, connections=8)
QUIET = Progress()


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store/a"
    return f"s3://{request.getfixturevalue('s3').bucket}/runs/a"


def folder_of(top: Path) -> Path:
    """Odd names, an empty file, one of several parts, and what is nobody's result."""
    contents = {
        "a.json": b"{}", "empty": b"", "deep/er/b.bin": b"b" * 1000, "with space ü#%20?": b"odd",
        "large.bin": os.urandom(11 * MIB), ".lock": b"", "deep/.hidden/c": b"no",
    }  # fmt: skip
    for name, content in contents.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(content)
    return top


def contents(top: Path) -> dict[str, bytes]:
    return {
        name: path.read_bytes()
        for path in top.rglob("*")
        if path.is_file()
        for name in [path.relative_to(top).as_posix()]
        if not any(part.startswith(".") for part in name.split("/"))
    }


def test_there_and_back_and_again_nothing_moves(url: str, tmp_path: Path) -> None:
    source, target = folder_of(tmp_path / "source"), tmp_path / "target"
    done = put(source, url, SMALL_PARTS, progress=QUIET)
    assert done["files"] == done["moved_files"] == 5
    first = get(url, target, SMALL_PARTS, progress=QUIET)
    assert first["moved_files"] == 5
    assert contents(target) == contents(source)
    listed = json.loads((target / MANIFEST).read_text())["files"]
    assert {one["path"] for one in listed} == set(contents(source))
    assert put(source, url, SMALL_PARTS, progress=QUIET)["moved_files"] == 0
    assert get(url, target, SMALL_PARTS, progress=QUIET)["moved_files"] == 0


def test_only_what_changed_moves_even_when_its_size_did_not(url: str, tmp_path: Path) -> None:
    source, target = folder_of(tmp_path / "source"), tmp_path / "target"
    put(source, url, SMALL_PARTS, progress=QUIET)
    get(url, target, SMALL_PARTS, progress=QUIET)
    (source / "a.json").write_bytes(b"[]")
    (target / "large.bin").write_bytes(bytes(11 * MIB))
    (target / "ours").write_text("not in the store")
    assert put(source, url, SMALL_PARTS, progress=QUIET)["moved_files"] == 1
    assert get(url, target, SMALL_PARTS, progress=QUIET)["moved_files"] == 2
    assert contents(target) == {**contents(source), "ours": b"not in the store"}


def test_half_an_upload_is_not_taken_for_a_whole_one(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder_of(tmp_path / "source")
    put(source, url, SMALL_PARTS, progress=QUIET)
    (source / "a.json").write_bytes(b"changed")
    kind = type(open_store(url, SMALL_PARTS))

    def refuse(*_: object) -> None:
        raise DflashError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "send", refuse)
        with pytest.raises(DflashError, match="gone"):
            put(source, url, SMALL_PARTS, progress=QUIET)
    with pytest.raises(InputInvalid, match=r"an upload that did not end"):
        get(url, tmp_path / "target", SMALL_PARTS, progress=QUIET)
    assert put(source, url, SMALL_PARTS, progress=QUIET)["moved_files"] == 1
    get(url, tmp_path / "target", SMALL_PARTS, progress=QUIET)


def test_what_was_damaged_there_never_appears_here(s3: Any, tmp_path: Path) -> None:
    url, source = f"s3://{s3.bucket}/x", folder_of(tmp_path / "source")
    put(source, url, SMALL_PARTS, progress=QUIET)
    s3.put_object(Bucket=s3.bucket, Key="x/deep/er/b.bin", Body=b"B" * 1000)
    with pytest.raises(InputInvalid, match=r"deep/er/b.bin is not what was uploaded"):
        get(url, tmp_path / "target", SMALL_PARTS, progress=QUIET)
    assert not (tmp_path / "target/deep/er/b.bin").exists()
    assert not (tmp_path / "target" / MANIFEST).exists()
    # Nobody's metadata vouches for it, so the next upload replaces it.
    assert put(source, url, SMALL_PARTS, progress=QUIET)["moved_files"] == 1


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a//b", "."])
def test_names_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    entry = {"path": name, "size": 0, "sha256": "0" * 64}
    (store / MANIFEST).write_text(json.dumps({"format": "dflash-objects/1", "files": [entry]}))
    with pytest.raises(InputInvalid, match="no name of a file"):
        get(f"file://{store}", tmp_path / "target", SMALL_PARTS, progress=QUIET)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other/1", "files": []}'])
def test_a_torn_manifest(text: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / MANIFEST).write_text(text)
    with pytest.raises(InputInvalid, match="no manifest of"):
        get(f"file://{tmp_path}/store", tmp_path / "target", SMALL_PARTS, progress=QUIET)


def test_objects_of_others(s3: Any, tmp_path: Path) -> None:
    """Nothing vouches for them but their ETags; one is a folder made in a console."""
    url, target = f"s3://{s3.bucket}/theirs", tmp_path / "target"
    s3.put_object(Bucket=s3.bucket, Key="theirs/", Body=b"")
    for number in range(30):
        s3.put_object(Bucket=s3.bucket, Key=f"theirs/{number:04}", Body=str(number).encode())
    with pytest.raises(InputInvalid) as refused:
        get(url, target, SMALL_PARTS, progress=QUIET)
    assert "--plain" in refused.value.hint
    assert get(url, target, SMALL_PARTS, plain=True, progress=QUIET)["moved_files"] == 30
    (target / "0007").write_text("8")
    assert get(url, target, SMALL_PARTS, plain=True, progress=QUIET)["moved_files"] == 1
    assert (target / "0007").read_text() == "7"


@pytest.mark.parametrize("fast", [True, False], ids=["signed", "boto3"])
def test_a_listing_of_many_pages(s3: Any, *, fast: bool) -> None:
    """With names that neither XML nor an address takes as they are."""
    backend = s3_backends["123456789012"]["global"]
    names = [f"{number:05}" for number in range(1500)]
    names += ["odd ü#%20?+=&<>\"'~.bin", "deep/er/x", "tab\there"]
    for name in [*names, "a folder/"]:
        backend.put_object(s3.bucket, f"many+/{name}", b"x")
    backend.put_object(s3.bucket, "many+else", b"x")
    store = S3Store(f"s3://{s3.bucket}/many+", SMALL_PARTS, fast=fast)
    listed = store.listed()
    assert sorted(listed) == sorted(names)
    assert listed["deep/er/x"] == Listed(size=1, etag="9dd4e461268c8034f5c8564e155c67a6")
    assert store.listed(deep=False, below="0001").keys() == {f"0001{n}" for n in range(10)}
    assert sorted(store.listed(deep=False)) == sorted(set(names) - {"deep/er/x"})
    assert store._bodies.in_signed.failures == 0


def test_ten_thousand_are_listed_with_ten_requests(
    s3_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del s3_keys
    process, url = s3_sink.start(objects=10_000)
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        store, asked = S3Store("s3://bench/rows", SMALL_PARTS), []
        real = URLLib3Session.send

        def send(session: URLLib3Session, request: Any) -> Any:
            asked.append(request.url)
            return real(session, request)

        monkeypatch.setattr(URLLib3Session, "send", send)
        listed = store.listed()
    finally:
        process.terminate()
        process.join()
    assert list(listed) == [f"{n // 1000:04}/{n:07}.json" for n in range(10_000)]
    assert len(asked) == 10


@pytest.mark.parametrize("text", ["", "<html/>", "<ListBucketResult><IsTruncated>true"])
def test_a_listing_that_is_none_is_asked_for_again(
    text: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway's page, or half an answer, never passes for an empty folder."""
    s3.put_object(Bucket=s3.bucket, Key="x/a", Body=b"1")
    store = S3Store(f"s3://{s3.bucket}/x", SMALL_PARTS)
    answer = SimpleNamespace(status_code=200, content=text.encode())
    monkeypatch.setattr(store._bodies._signed, "_ask", lambda *_, **__: answer)
    assert list(store.listed()) == ["a"]


def test_a_short_command_loads_and_collects_no_more_than_it_must(s3: Any, tmp_path: Path) -> None:
    """boto3 and the collector's rounds were a third of its time."""
    (tmp_path / "one").write_bytes(b"1")
    code = (
        "import gc, sys; from dflash.__main__ import main\n"
        "print(main(), gc.get_freeze_count() > 0, gc.isenabled(), "
        "{'boto3', 's3transfer', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "put", str(tmp_path), f"s3://{s3.bucket}/x"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    assert done.stdout == "0 True True set()\n"


def test_the_line_of_the_benchmarks_is_one_for_all_streams() -> None:
    began, line, data = time.monotonic(), Line(4e6), memoryview(bytes(MIB // 4))
    with ThreadPoolExecutor(4) as pool:
        moved = list(pool.map(lambda _: b"".join(line.pieces(data)), range(4)))
    assert time.monotonic() - began >= MIB / 4e6
    assert moved == [data] * 4


def many(top: Path) -> Path:
    top.mkdir()
    for number in range(40):
        (top / f"{number:03}").write_bytes(os.urandom(2 * MIB))
    return top


def test_killed_while_it_uploads(s3: Any, tmp_path: Path) -> None:
    source, url = many(tmp_path / "source"), f"s3://{s3.bucket}/k"

    def some() -> bool:
        return s3.list_objects_v2(Bucket=s3.bucket)["KeyCount"] > 3

    words = ["put", str(source), url, "--connections", "2"]
    killed_in_the_middle(words, "up", 15 * MIB, some)
    with pytest.raises(InputInvalid, match="did not end"):
        get(url, tmp_path / "target", SMALL_PARTS, progress=QUIET)
    assert 0 < put(source, url, SMALL_PARTS, progress=QUIET)["moved_files"] < 40
    get(url, tmp_path / "target", SMALL_PARTS, progress=QUIET)
    assert contents(tmp_path / "target") == contents(source)


def test_killed_while_it_downloads(s3: Any, tmp_path: Path) -> None:
    source, url = many(tmp_path / "source"), f"s3://{s3.bucket}/k"
    target = tmp_path / "target"
    put(source, url, SMALL_PARTS, progress=QUIET)
    words = ["get", url, str(target), "--connections", "2"]
    killed_in_the_middle(words, "down", 15 * MIB, lambda: len(contents(target)) > 3)
    assert not (target / MANIFEST).exists()
    before = contents(target)
    assert before.items() <= contents(source).items(), "whole files or none"
    done = get(url, target, SMALL_PARTS, progress=QUIET)
    assert done["moved_files"] == 40 - len(before)
    assert contents(target) == contents(source)
    assert not list(target.rglob("*.part"))


def test_parts_of_a_killed_upload_are_removed(s3: Any, tmp_path: Path) -> None:
    source, url = folder_of(tmp_path / "source"), f"s3://{s3.bucket}/x"
    for key in ("x/large.bin", "x/large.bin.2"):
        s3.create_multipart_upload(Bucket=s3.bucket, Key=key)
    put(source, url, SMALL_PARTS, progress=QUIET)
    left = s3.list_multipart_uploads(Bucket=s3.bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["x/large.bin.2"], "another file's is not ours"


def test_giving_up_ends_the_threads_of_large_files(s3: Any, tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source")
    store = open_store(f"s3://{s3.bucket}/x", SMALL_PARTS)
    before = set(threading.enumerate())
    store.send(source / "large.bin", "large.bin", 11 * MIB, "0" * 64, None)
    new = [one for one in set(threading.enumerate()) - before if one.name.startswith("parts")]
    assert new
    store.cancel()
    assert not [one for one in new if one.is_alive()]


def test_a_full_disk(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source")
    url, target = f"file://{tmp_path}/store", tmp_path / "target"
    put(source, url, SMALL_PARTS, progress=QUIET)
    code = (
        "import resource, sys; from dflash.__main__ import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "get", url, str(target)],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (target / "large.bin").exists()
    assert not (target / MANIFEST).exists()
    get(url, target, SMALL_PARTS, progress=QUIET)
    assert contents(target) == contents(source)


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    entry = {"path": "x", "size": 1 << 40, "sha256": "0" * 64}
    (store / MANIFEST).write_text(json.dumps({"format": "dflash-objects/1", "files": [entry]}))
    with pytest.raises(DflashError, match="GB are to come"):
        get(f"file://{store}", tmp_path / "target", SMALL_PARTS, progress=QUIET)


class Flaky(BaseHTTPRequestHandler):
    """One object whose body breaks off until the last try; listings and the rest fail."""

    asked = 0
    body = b"x" * 100_000
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(self.body if self.asked >= 3 else self.body[:1000])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_a_body_that_breaks_off_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3_keys: dict[str, str]
) -> None:
    del s3_keys
    with ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as flaky:
        threading.Thread(target=flaky.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{flaky.server_address[1]}")
        store = open_store("s3://bucket/x", SMALL_PARTS)
        store.fetch("name", len(Flaky.body), tmp_path / "got", "")
        flaky.shutdown()
    assert (tmp_path / "got").read_bytes() == Flaky.body
    assert Flaky.asked == 3


def test_messages(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(folder_of(tmp_path / "source"))

    def said(*words: str, code: int = 1) -> str:
        assert main(words) == code
        text = capsys.readouterr().err
        assert "Traceback" not in text
        return text

    assert "no such bucket" in said("put", source, "s3://nobody-has-this/x")
    assert "is no folder" in said("put", f"{source}/none", f"s3://{s3.bucket}/x")
    assert "is no address" in said("put", source, "https://x/y", code=2)
    assert "long-lived" in said("put", source, f"s3://{s3.bucket}/x", "--short-lived-only")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    assert "5 files were sent" in said(
        "put", source, f"s3://{s3.bucket}/x", "--short-lived-only", code=0
    )
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.socket() as nobody:  # bound, not listening: refused at once
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setattr("dflash.s3.TRIES", 1)
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        text = said("get", f"s3://{s3.bucket}/x", str(tmp_path / "t"), "--endpoint", endpoint)
    assert "gives no answer" in text
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    assert "no credentials" in said("get", f"s3://{s3.bucket}/x", str(tmp_path / "t"))


def test_into_itself(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source")
    with pytest.raises(UsageError, match="lies inside"):
        put(source, f"file://{source}/store", SMALL_PARTS, progress=QUIET)


def test_the_receipt_is_there_only_for_a_whole_upload(tmp_path: Path) -> None:
    source, receipt = folder_of(tmp_path / "source"), tmp_path / "receipt.json"
    words = ["put", str(source), f"file://{tmp_path}/store", "--receipt", str(receipt)]
    assert main(words) == 0
    assert json.loads(receipt.read_text())["url"] == f"file://{tmp_path}/store"
    (tmp_path / "store").rename(tmp_path / "moved")
    (tmp_path / "store").write_text("a file is in the way")
    assert main(words) == 1
    assert not receipt.exists()
