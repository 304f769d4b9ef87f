"""A growing folder into S3: only closed files, manifests last, over kills and outages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dflash.__main__ import main
from dflash.completions import INFLIGHT
from dflash.errors import DflashError
from dflash.get import get
from dflash.progress import Progress
from dflash.s3 import NoAnswer, StoreOptions
from dflash.s3_store import S3Store
from dflash.sync import Growing, sync
from tests.support.deadline import wait_for
from tests.support.s3 import s3, s3_keys, s3_server

__all__ = ["s3", "s3_keys", "s3_server"]

ROOT = Path(__file__).parents[2]
OPTIONS = StoreOptions(connections=4)
QUIET = Progress()


def names(client: Any) -> list[str]:
    found = client.list_objects_v2(Bucket=client.bucket).get("Contents", [])
    return sorted(entry["Key"].removeprefix("x/") for entry in found)


def write(path: Path, text: str, *, age_s: float = 100.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age_s,) * 2)


def test_only_what_is_closed_goes(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    growing = Growing(folder, f"s3://{s3.bucket}/x", OPTIONS, settle_s=30, progress=QUIET)
    growing.look()  # the folder comes later
    write(folder / "shard-0.jsonl", "a")
    write(folder / "shard-1.jsonl", "still written", age_s=0)
    for name in (INFLIGHT, "b.partial", ".hidden", "c.tmp"):
        write(folder / name, "never")
    growing.look()
    assert names(s3) == ["shard-0.jsonl"]
    write(folder / "shard-0.jsonl", "changed again")
    growing.look()
    assert s3.get_object(Bucket=s3.bucket, Key="x/shard-0.jsonl")["Body"].read() == b"a"
    assert growing.summary()["files"] == 1


def test_manifests_go_after_what_they_list(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    real = S3Store.send

    def send(store: S3Store, path: Path, name: str, *args: Any) -> None:
        sent.append(name)
        real(store, path, name, *args)

    monkeypatch.setattr(S3Store, "send", send)
    for name in ("manifest.json", *(f"shard-{number}" for number in range(9))):
        write(tmp_path / "out" / name, name)
    sync(tmp_path / "out", f"s3://{s3.bucket}/x", OPTIONS, settle_s=0, progress=QUIET)
    assert sent[-1] == "manifest.json"
    assert len(sent) == 10


def test_without_an_end_the_folder_must_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", str(tmp_path / "nope"), f"file://{tmp_path}/x"]) == 1
    assert f"{tmp_path}/nope is no folder" in capsys.readouterr().err


def test_it_says_what_it_came_to_also_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, url = tmp_path / "out", f"file://{tmp_path}/x"
    folder.mkdir()
    assert main(["sync", str(folder), url]) == 0
    assert f"0/0 bytes  0 files in {url}" in capsys.readouterr().err
    write(folder / "a", "four")
    write(folder / "b", "still written", age_s=0)
    assert main(["sync", str(folder), url, "--settle", "60"]) == 0
    said = capsys.readouterr().err
    assert f"4/4 bytes  1 file in {url}; 1 more changed less than 60 s ago" in said


def test_a_bucket_that_is_not_there_is_told_of_an_empty_folder(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(DflashError, match="no-such-bucket"):
        sync(tmp_path, "s3://no-such-bucket-xyz/aa", OPTIONS, progress=QUIET)


def test_until_the_end_that_was_named(
    s3: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, url = tmp_path / "out", f"s3://{s3.bucket}/x"
    loud = Progress(echo=sys.stderr)
    ended: list[dict[str, Any]] = []

    def follow() -> None:
        ended.append(
            sync(folder, url, OPTIONS, until="manifest.json:complete", every_s=0.05,
                 settle_s=0, progress=loud)
        )  # fmt: skip

    following = threading.Thread(target=follow)
    following.start()
    said = f"follows {folder}, which is not there yet, until manifest.json:complete"
    wait_for(lambda: said in capsys.readouterr().err, what="what it waits for to be said")
    write(folder / "shard-0.jsonl", "a")
    write(folder / "manifest.json", json.dumps({"complete": False}))
    wait_for(lambda: "shard-0.jsonl" in names(s3), limit_s=60, what="the first shard there")
    assert not ended
    write(folder / "shard-1.jsonl", "b")
    write(folder / "manifest.json", json.dumps({"complete": True}))
    following.join(60)
    assert ended[0]["files"] == 3
    get(url, tmp_path / "back", OPTIONS, progress=QUIET)
    assert json.loads((tmp_path / "back/manifest.json").read_text()) == {"complete": True}
    assert (tmp_path / "back/shard-1.jsonl").read_text() == "b"


def test_an_outage_is_waited_for(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    real = S3Store.listed

    def listed(store: S3Store, **about: Any) -> Any:
        asked.append(1)
        if len(asked) < 3:
            raise NoAnswer("the store has trouble", "wait")
        return real(store, **about)

    monkeypatch.setattr(S3Store, "listed", listed)
    write(tmp_path / "out/a", "a")
    following = threading.Thread(
        target=sync, args=(tmp_path / "out", f"s3://{s3.bucket}/x", OPTIONS),
        kwargs={"until": "end", "every_s": 0.05, "settle_s": 0,
                "progress": Progress(echo=sys.stderr)},
    )  # fmt: skip
    following.start()
    wait_for(lambda: names(s3) == ["a"], limit_s=60, what="the file there")
    write(tmp_path / "out/end", "")
    following.join(60)
    assert names(s3) == [".objects.json", "a", "end"]
    assert "it is tried again" in capsys.readouterr().err


def test_killed_it_goes_on(s3: Any, tmp_path: Path) -> None:
    folder, url = tmp_path / "out", f"s3://{s3.bucket}/x"
    for number in range(40):
        write(folder / f"shard-{number:02}", f"{number}" * 1000)
    words = ["sync", str(folder), url, "--until", "end", "--settle", "0", "--connections", "1"]
    running = subprocess.Popen(
        [sys.executable, "-m", "dflash", *words], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: len(names(s3)) > 3, limit_s=60, what="some of it there")
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    (folder / "end").touch()
    assert main(words) == 0
    assert names(s3) == sorted([".objects.json", "end", *(f"shard-{n:02}" for n in range(40))])
    get(url, tmp_path / "back", OPTIONS, progress=QUIET)


@pytest.mark.parametrize("words", [["--every", "0"], ["--settle", "-1"]])
def test_wrong_words(words: list[str], tmp_path: Path) -> None:
    assert main(["sync", str(tmp_path), f"file://{tmp_path}/x", *words]) == 2
