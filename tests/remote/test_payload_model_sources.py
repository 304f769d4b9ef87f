"""Models from a hub and from S3 by signed URLs, over real HTTP: whole, resumed, and left alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from dflash.errors import EXIT_KEYS
from remote.payloads import model_copy
from remote.payloads.model_sources import LISTING, unpack
from remote.payloads.records import Refused
from runbook.errors import CannotStart
from runbook.grants import LISTING as ISSUED
from runbook.grants import Issued, issue
from tests.support.deadline import wait_for
from tests.support.hub_double import COMMIT, NAME, HubDouble
from tests.support.s3 import s3, s3_keys, s3_server
from tests.support.s3_ending import EndingStore, ending, temporary_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ending", "s3", "s3_keys", "s3_server"]

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
FILES = {
    "config.json": b'{"a": 1}', "empty.txt": b"", "model-1.safetensors": os.urandom(20 * MIB + 3),
    "model-2.safetensors": os.urandom(100), "pytorch_model.bin": b"the same in another format",
    "vocab/merges.txt": b"a b", ".gitattributes": b"no part of a model",
}  # fmt: skip
WANTED = {name: FILES[name] for name in FILES if not name.startswith((".", "pytorch"))}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    with HubDouble(files=dict(FILES), token="hub-token") as double:
        monkeypatch.setenv("HF_ENDPOINT", double.url)
        monkeypatch.setenv("HF_TOKEN", "hub-token")
        yield double


def argv(tmp_path: Path, source: str, *more: str) -> list[str]:
    folders = ["--shm", str(tmp_path / "shm"), "--disk", str(tmp_path / "disk"), "--no-shm"]
    return ["--source", source, *folders, *more]


def copy(tmp_path: Path, source: str, *more: str) -> dict[str, Any]:
    return model_copy.make(model_copy.arguments(argv(tmp_path, source, *more)))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def test_from_a_hub_at_one_commit(hub: HubDouble, tmp_path: Path) -> None:
    hub.broken = 2  # bodies that end in their middle are asked for again
    found = copy(tmp_path, f"hub:{NAME}")
    assert found["where"] == "disk"
    assert contents(tmp_path / "disk") == WANTED
    manifest = json.loads((tmp_path / "disk/manifest.json").read_text())
    assert manifest["source"] == f"hub:{NAME}@{COMMIT}"
    hub.ranges.clear()
    assert copy(tmp_path, f"hub:{NAME}")["reason"] == "was already there"
    assert not hub.ranges


@pytest.mark.parametrize(
    ("name", "token", "said", "hint"),
    [
        ("lab/none", "hub-token", "404", "correct the name"),
        (NAME, "wrong-token", "401", "check HF_TOKEN"),
    ],
)
def test_what_a_hub_refuses(
    hub: HubDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, token: str, said: str, hint: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(Refused, match=said) as refused:
        copy(tmp_path, f"hub:{name}")
    assert hint in refused.value.hint


def test_damaged_on_the_way_it_never_appears(hub: HubDouble, tmp_path: Path) -> None:
    real = model_copy.open_model(f"hub:{NAME}")
    hub.files["model-1.safetensors"] = bytes(20 * MIB + 3)
    with contextlib.closing(real), pytest.raises(Refused, match="is damaged"):
        model_copy.copy_to(
            model_copy.arguments(argv(tmp_path, "x")),
            model_copy.Place(tmp_path / "disk", "disk", ""),
            real,
        )
    assert not (tmp_path / "disk/model-1.safetensors").exists()
    assert not (tmp_path / "disk/manifest.json").exists()


def test_killed_inside_a_file_it_goes_on_there(hub: HubDouble, tmp_path: Path) -> None:
    hub.stands_at = 12 * MIB  # in the second of three blocks
    journal = tmp_path / "disk/model-1.safetensors.blocks.partial"
    running = subprocess.Popen(
        [sys.executable, "remote/payloads/model_copy.py",
         *argv(tmp_path, f"hub:{NAME}", "--streams", "1", "--files", "1")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(
            lambda: journal.exists() and len(journal.read_text().splitlines()) > 1,
            limit_s=60, what="the first block",
        )  # fmt: skip
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
        hub.stands_at = 0
    left = [json.loads(line)[0] for line in journal.read_text().splitlines()[1:]]
    hub.ranges.clear()
    copy(tmp_path, f"hub:{NAME}")
    assert contents(tmp_path / "disk") == WANTED
    again = {start for name, start in hub.ranges if name == "model-1.safetensors"}
    assert again == {0, 8 * MIB, 16 * MIB} - set(left)


def test_a_torn_block_is_brought_again(hub: HubDouble, tmp_path: Path) -> None:
    hub.broken = 10**6
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remote.payloads.model_sources.TRIES", 1)
        with pytest.raises(Refused, match="does not come"):
            copy(tmp_path, f"hub:{NAME}")
    hub.broken = 0
    path = tmp_path / "disk/model-1.safetensors.partial"
    head = (tmp_path / "disk/model-1.safetensors.blocks.partial").read_text().splitlines()[0]
    (tmp_path / "disk/model-1.safetensors.blocks.partial").write_text(f"{head}\n[0, 17]\n[8")
    assert path.stat().st_size == 20 * MIB + 3
    copy(tmp_path, f"hub:{NAME}")
    assert contents(tmp_path / "disk") == WANTED


@pytest.fixture
def prefix(s3: Any) -> str:
    for name, data in WANTED.items():
        s3.put_object(Bucket=s3.bucket, Key=f"models/tiny/{name}", Body=data)
    return f"s3://{s3.bucket}/models/tiny"


def grant(url: str) -> dict[str, Any]:
    return {"kind": "listing", "url": url, "endpoint": "", "region": "", "addressing": "auto"}


def test_from_s3_by_urls_that_were_signed_elsewhere(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ISSUED == LISTING
    monkeypatch.setenv(LISTING, issue([grant(prefix)], {}).values[LISTING])
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)  # no key is on the host
    found = copy(tmp_path, prefix)
    assert found["bytes"] == sum(map(len, WANTED.values()))
    assert contents(tmp_path / "disk") == WANTED
    monkeypatch.delenv(LISTING)
    with pytest.raises(Refused, match="no listing"):
        copy(tmp_path, prefix)


def test_signed_urls_that_ended_are_replaced_by_those_that_are_handed(
    ending: EndingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", ending.url)
    for name, data in WANTED.items():
        boto3.client("s3").put_object(Bucket="bucket", Key=f"m/{name}", Body=data)

    def signed() -> Issued:
        with pytest.MonkeyPatch.context() as operator:
            for name, value in temporary_keys(ending.url).items():
                operator.setenv(name, value)
            return issue([grant("s3://bucket/m")], {})

    first = signed()
    assert first.end > first.since
    for name, value in {**first.environment, "RUNBOOK_JOB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    ending.end()
    assert model_copy.main(argv(tmp_path, "s3://bucket/m")) == model_copy.EXIT_KEYS == EXIT_KEYS
    later = signed()
    handed = {"since": later.since, "end": later.end, "values": dict(later.values)}
    (tmp_path / "ctl").mkdir()
    (tmp_path / "ctl/keys").write_text(json.dumps(handed))
    copy(tmp_path, "s3://bucket/m")
    assert contents(tmp_path / "disk") == WANTED


def test_a_listing_stays_small(s3: Any) -> None:
    """One variable of an environment holds at most 128 KiB."""
    for number in range(120):
        key = f"big/model-{number:05}-of-00120.safetensors"
        s3.put_object(Bucket=s3.bucket, Key=key, Body=b"x")
    packed = issue([grant(f"s3://{s3.bucket}/big")], {}).values[LISTING]
    assert len(packed) < 20_000
    assert len(unpack(packed)) == 120


def test_an_empty_prefix_is_told_before_anything_starts(s3: Any) -> None:
    with pytest.raises(CannotStart, match="holds no objects"):
        issue([grant(f"s3://{s3.bucket}/none")], {})
    with pytest.raises(CannotStart, match="no such bucket"):
        issue([grant("s3://nobody-has-this/x")], {})


def test_a_copy_in_use_is_left_alone_and_reclaimed_afterwards(tmp_path: Path) -> None:
    source, shm = tmp_path / "model", tmp_path / "shm"
    source.mkdir()
    (source / "a.safetensors").write_bytes(b"a" * 1000)
    folders = ["--source", str(source), "--shm", str(shm), "--disk", str(shm), "--no-shm"]

    def run(*more: str) -> dict[str, Any]:
        return model_copy.make(model_copy.arguments([*folders, *more]))

    run()
    code = "import sys; sys.stdin.read()"
    server = subprocess.Popen(
        [sys.executable, "-c", code, "--model-path", str(shm)], stdin=subprocess.PIPE
    )
    wait_for(lambda: model_copy.users_of(shm) == [server.pid], what="the server")
    (source / "a.safetensors").write_bytes(b"b" * 1000)
    for words in (["--replace"], ["--reclaim"]):
        with pytest.raises(Refused, match=f"is used by process {server.pid}"):
            run(*words)
    assert (shm / "a.safetensors").read_bytes() == b"a" * 1000
    server.communicate()
    assert run("--reclaim")["bytes"] == 1000
    assert not shm.exists()
    assert run("--reclaim")["bytes"] == 0


def test_a_copy_that_somebody_we_cannot_see_has_open_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another container shares /dev/shm, or /proc hides other users: the kernel knows."""
    source, shm = tmp_path / "model", tmp_path / "shm"
    source.mkdir()
    (source / "a.safetensors").write_bytes(b"a" * 1000)
    folders = ["--source", str(source), "--shm", str(shm), "--disk", str(shm), "--no-shm"]
    model_copy.make(model_copy.arguments(folders))
    reclaim = model_copy.arguments([*folders, "--reclaim"])
    monkeypatch.setattr(model_copy, "users_of", lambda _: [])
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=1);"
        "f.close(); print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(shm / "a.safetensors")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hidden:
        assert hidden.stdout is not None
        hidden.stdout.readline()
        with pytest.raises(Refused, match="open in a process that we cannot see"):
            model_copy.make(reclaim)
        hidden.communicate()
    assert model_copy.make(reclaim)["bytes"] == 1000
