"""A large file to and from S3 goes on in its middle after kill -9, and only with what is right."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.httpsession import URLLib3Session
from urllib3.exceptions import IncompleteRead

from dflash import bodies
from dflash.bodies import LARGE, REST_S, STRIKES, Bodies
from dflash.errors import InputInvalid
from dflash.get import get
from dflash.progress import Progress
from dflash.put import put
from dflash.ranged import JOURNAL, PARTIAL, PartialFile
from dflash.s3 import StoreOptions
from dflash.s3_store import S3Store
from dflash.signed import Signed
from tests.support.s3 import killed_in_the_middle, s3, s3_keys, s3_server

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["s3", "s3_keys", "s3_server"]

MIB = 1 << 20
PARTS = StoreOptions(part=5 * MIB, connections=4)
SIZE = 36 * MIB + 17
MIDDLE = int(3.5 * PARTS.part)
WORDS = ["--part-mib", "5", "--connections", "1"]
QUIET = Progress()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "large.bin").write_bytes(os.urandom(SIZE))
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each range that is fetched begins."""
    starts: list[int] = []
    real = Bodies.get

    def get_body(self: Bodies, key: str, **about: Any) -> Any:
        if "start" in about:
            starts.append(about["start"])
        return real(self, key, **about)

    monkeypatch.setattr(Bodies, "get", get_body)
    return starts


def failures(store: S3Store) -> list[int]:
    return [trust.failures for trust in (store._bodies.in_obstore, store._bodies.in_signed)]


def lines(target: Path) -> list[str]:
    journal = target / f".large.bin{JOURNAL}"
    return journal.read_text().splitlines() if journal.exists() else []


def test_a_killed_download_goes_on_inside_the_file(
    s3: Any, source: Path, tmp_path: Path, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, target = f"s3://{s3.bucket}/x", tmp_path / "target"
    put(source, url, PARTS, progress=QUIET)
    words = ["get", url, str(target), *WORDS]
    killed_in_the_middle(words, "down", MIDDLE, lambda: len(lines(target)) > 3)
    left = [json.loads(line) for line in lines(target)[1:]]
    assert not (target / "large.bin").exists()
    # One of the ranges was torn, as by a power cut; the journal's last line too.
    spoiled = left[1][0]
    with (target / f".large.bin{PARTIAL}").open("r+b") as handle:
        handle.seek(spoiled)
        handle.write(b"torn")
    with (target / f".large.bin{JOURNAL}").open("a") as handle:
        handle.write('[99, "to')
    asked.clear()
    # What lies there already is not asked for a second time, on a disk that is nearly full.
    room = shutil.disk_usage(target)._replace(free=MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)

    get(url, target, PARTS, progress=QUIET)

    assert (target / "large.bin").read_bytes() == (source / "large.bin").read_bytes()
    kept = {start for start, _, _ in left} - {spoiled}
    assert not kept & set(asked), "what was right is not fetched again"
    assert spoiled in asked
    assert not list(target.rglob(f"*{PARTIAL}*"))


def test_what_an_earlier_run_left_of_another_content_is_not_used(
    s3: Any, source: Path, tmp_path: Path
) -> None:
    url, target = f"s3://{s3.bucket}/x", tmp_path / "target"
    with PartialFile(target / "large.bin", size=SIZE, tag="another") as partial:
        partial.write(0, b"old" * 100)
    put(source, url, PARTS, progress=QUIET)
    get(url, target, PARTS, progress=QUIET)
    assert (target / "large.bin").read_bytes() == (source / "large.bin").read_bytes()


def test_a_large_object_that_was_replaced_never_appears(
    s3: Any, source: Path, tmp_path: Path
) -> None:
    url = f"s3://{s3.bucket}/x"
    put(source, url, PARTS, progress=QUIET)
    s3.put_object(Bucket=s3.bucket, Key="x/large.bin", Body=bytes(SIZE))
    with pytest.raises(InputInvalid, match="not what was uploaded"):
        get(url, tmp_path / "target", PARTS, progress=QUIET)
    assert not list((tmp_path / "target").rglob("*large*"))


def test_a_killed_upload_goes_on_with_the_parts_that_are_there(
    s3: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{s3.bucket}/x"

    def parts() -> dict[int, Any]:
        uploads = s3.list_multipart_uploads(Bucket=s3.bucket).get("Uploads", [])
        about = {"Bucket": s3.bucket, "Key": "x/large.bin"}
        found = (s3.list_parts(**about, UploadId=one["UploadId"]) for one in uploads)
        return {part["PartNumber"]: part for one in found for part in one.get("Parts", ())}

    words = ["put", str(source), url, *WORDS]
    killed_in_the_middle(words, "up", MIDDLE, lambda: len(parts()) == 3)
    sent: list[int] = []
    finish = S3Store._finish_upload

    def watched(store: S3Store, *args: Any) -> bool:
        client, real = store._client, store._client.upload_part

        def upload_part(**about: Any) -> Any:
            sent.append(about["PartNumber"])
            return real(**about)

        monkeypatch.setattr(client, "upload_part", upload_part)
        return finish(store, *args)

    monkeypatch.setattr(S3Store, "_finish_upload", watched)
    put(source, url, PARTS, progress=QUIET)

    assert sorted(sent) == list(range(4, 9)), "only what was missing"
    assert not parts()
    get(url, tmp_path / "target", PARTS, progress=QUIET)
    assert (tmp_path / "target/large.bin").read_bytes() == (source / "large.bin").read_bytes()


def test_parts_of_another_content_are_given_up(s3: Any, source: Path, tmp_path: Path) -> None:
    url, about = f"s3://{s3.bucket}/x", {"Bucket": s3.bucket, "Key": "x/large.bin"}
    upload = s3.create_multipart_upload(**about)["UploadId"]
    s3.upload_part(**about, UploadId=upload, PartNumber=2, Body=bytes(5 * MIB))
    # One whose parts fit, but that was begun for a file with another SHA-256.
    upload = s3.create_multipart_upload(**about, Metadata={"sha256": "0" * 64})["UploadId"]
    first = (source / "large.bin").read_bytes()[: 5 * MIB]
    s3.upload_part(**about, UploadId=upload, PartNumber=1, Body=first)
    put(source, url, PARTS, progress=QUIET)
    assert not s3.list_multipart_uploads(Bucket=s3.bucket).get("Uploads")
    get(url, tmp_path / "target", PARTS, progress=QUIET)
    assert put(source, url, PARTS, progress=QUIET)["moved_files"] == 0


@pytest.mark.parametrize("fast", [True, False], ids=["obstore and signed", "boto3"])
def test_all_carriers_bring_the_same(s3: Any, tmp_path: Path, *, fast: bool) -> None:
    """Odd names too, and a range to the end of the object."""
    store = S3Store(f"s3://{s3.bucket}/x", PARTS, fast=fast)
    assert (store._bodies._fast is not None) is fast
    assert (store._bodies._signed is not None) is fast
    odd, large = "odd ü#%20?+=&/~.bin", os.urandom(3 * LARGE + 1)
    wanted = {"plain.bin": b"12345", odd: b"odd", "empty": b"", f"{odd}.large": large}
    for name, data in wanted.items():
        store.write(name, data)
        assert store.read(name) == data
        path, digest = tmp_path / "back" / name, hashlib.sha256(data).hexdigest()
        assert store.fetch(name, len(data), path, digest) == digest == store.digest(name)
        assert path.read_bytes() == data
    assert bytes(store._bodies.get("x/plain.bin", start=2, end=4)) == b"34"
    assert bytes(store._bodies.get("x/plain.bin", start=3)) == b"45"
    assert store.read("none") is None
    keys = {one["Key"] for one in s3.list_objects_v2(Bucket=s3.bucket)["Contents"]}
    assert keys == {f"x/{name}" for name in wanted}
    assert failures(store) == [0, 0], "nothing had to be done twice"


def test_what_breaks_off_or_arrives_damaged_is_brought_by_boto3(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In both directions; after three of those the other way rests, and then is tried once."""
    store, data = S3Store(f"s3://{s3.bucket}/x", PARTS), os.urandom(3 * LARGE)
    digest = hashlib.sha256(data).hexdigest()
    real, began = URLLib3Session.send, []

    class Broken:
        """An answer that ends too early."""

        status_code = 200

        @property
        def raw(self) -> Any:
            return self

        def stream(self, size: int, **_: object) -> Any:
            yield data[:size]
            raise IncompleteRead(size, len(data) - size)

    def send(session: URLLib3Session, request: Any) -> Any:
        if session is not store._bodies._signed._session:  # type: ignore[union-attr]
            return real(session, request)
        began.append(request.method)
        if request.method == "PUT":  # another body than the signature tells
            request.body = bytes(len(data))
            request.headers["Authorization"] = "none"
            request.url = f"{request.url}?partNumber=1&uploadId=none"
            return real(session, request)
        return Broken()

    monkeypatch.setattr(URLLib3Session, "send", send)
    store.send(tmp_path / "unread", "a", len(data), digest, memoryview(data))
    for _ in range(STRIKES):
        assert store.fetch("a", len(data), tmp_path / "a", digest) == digest
        assert (tmp_path / "a").read_bytes() == data
    assert began == ["PUT", *["GET"] * (STRIKES - 1)]
    began.clear()
    now = time.monotonic() + REST_S
    monkeypatch.setattr(bodies, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in range(2):
        assert store.fetch("a", len(data), tmp_path / "a", digest) == digest
    assert began == ["GET"], "it failed again and rests again"
    now += REST_S
    monkeypatch.setattr(URLLib3Session, "send", real)
    assert store.fetch("a", len(data), tmp_path / "a", digest) == digest
    assert failures(store) == [0, 0], "it works, and is used as before"


def test_a_full_disk_is_told_and_not_tried_elsewhere(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, data = S3Store(f"s3://{s3.bucket}/x", PARTS), bytes(2 * LARGE)
    store.write("a", data)

    def full(_signed: Signed, _key: str, _handle: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Signed, "fetch", full)
    with pytest.raises(OSError, match="No space left") as told:
        store.fetch("a", len(data), tmp_path / "a", "")
    assert told.value.filename == str(tmp_path / "a")
    assert failures(store) == [0, 0]
    assert not list(tmp_path.iterdir())
