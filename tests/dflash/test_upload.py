"""Checkpoints to S3 (a moto server on loopback) while training goes on, whatever S3 does."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dflash import upload
from dflash.checkpoint import PARTIAL
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.s3_store import S3Store
from dflash.train import finished_or_restored, train
from dflash.train_config import TrainConfig
from dflash.upload import Uploader, fetch_latest
from tests.support.s3 import s3, s3_keys, s3_server
from tests.support.tiny_runs import make_inputs, options

__all__ = ["s3", "s3_keys", "s3_server"]

DEADLINE_S = 60


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash.s3.TRIES", 1)


def text_of(client: Any, key: str) -> str:
    return client.get_object(Bucket=client.bucket, Key=key)["Body"].read().decode()


def names(client: Any) -> list[str]:
    found = client.list_objects_v2(Bucket=client.bucket).get("Contents", [])
    return sorted(entry["Key"] for entry in found)


def checkpoint(root: Path, step: int) -> Path:
    folder = root / f"step-{step:06d}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(1000) + bytes([step]))
    (folder / "config.json").write_text("{}")
    return folder


def until(predicate: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not predicate():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_run_leaves_its_checkpoints_there_and_goes_on_from_them_elsewhere(
    s3: Any, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{s3.bucket}/runs/a"
    first = train(TrainConfig.from_json(options(inputs, tmp_path / "one", steps=4, upload=url)))
    assert first["upload"] == {"url": url, "latest": "step-000004", "problem": None}
    assert text_of(s3, "runs/a/latest") == "step-000004\n"
    assert "runs/a/step-000004/training_state.pt" in names(s3)
    # Another machine, nothing on it: the same command continues.
    changes = {"steps": 5, "schedule": "wsd", "decay": 0.01}
    with pytest.raises(DflashError, match="decay"):
        train(TrainConfig.from_json(options(inputs, tmp_path / "two", upload=url, **changes)))
    assert (tmp_path / "two" / "step-000004" / "model.safetensors").read_bytes() == (
        tmp_path / "one" / "step-000004" / "model.safetensors"
    ).read_bytes()
    assert "fetching step-000004" in capsys.readouterr().err
    # It was over: nothing is trained, and the summary tells of what came.
    over = train(TrainConfig.from_json(options(inputs, tmp_path / "three", steps=4, upload=url)))
    assert Path(over["checkpoint"]).parent == tmp_path / "three"
    assert (over["step"], over["ended"], over["upload"]) == (4, "steps", first["upload"])


def test_a_run_that_is_over_is_sent_to_another_address_too(
    s3: Any, inputs: Path, tmp_path: Path
) -> None:
    for place in ("a", "b", "b/"):
        url = f"s3://{s3.bucket}/runs/{place}"
        found = train(TrainConfig.from_json(options(inputs, tmp_path, steps=2, upload=url)))
        assert found["upload"]["latest"] == "step-000002"
    assert {"runs/a/latest", "runs/b/latest"} <= set(names(s3))


def test_training_goes_on_when_s3_refuses(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
    s3_keys: dict[str, str],
) -> None:  # fmt: skip
    del s3_keys
    with socket.socket() as nobody:  # bound, not listening: refused at once
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        monkeypatch.setattr(upload, "PAUSES_S", (0.01,))
        monkeypatch.setattr("dflash.train.restore", lambda _config: None)
        config = options(inputs, tmp_path / "out", upload="s3://bucket/x")
        summary = train(TrainConfig.from_json(config))
    assert summary["step"] == 6
    assert summary["upload"]["latest"] is None
    assert "connect" in summary["upload"]["problem"]
    said = capsys.readouterr().err
    assert "it is tried again" in said
    assert "not uploaded" in said


def test_a_refusal_is_retried_until_it_works(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, told = f"{s3.bucket}-late", []
    monkeypatch.setattr(upload, "PAUSES_S", (0.05,))
    uploader = Uploader(f"s3://{bucket}/x", told.append)
    uploader.offer(checkpoint(tmp_path, 1))
    until(lambda: uploader.problem, "the bucket does not exist")
    assert uploader.holding == {"step-000001"}
    s3.create_bucket(Bucket=bucket)
    until(lambda: uploader.latest == "step-000001", "it exists now")
    assert uploader.holding == set()
    assert uploader.close()["problem"] is None


def test_latest_waits_for_every_file(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that loses bytes must not become the one that is resumed from."""
    monkeypatch.setattr(upload, "PAUSES_S", (0.05,))
    real = S3Store.send

    def losing(store: S3Store, path: Path, name: str, size: int, digest: str, data: None) -> None:
        if "model" not in name:
            real(store, path, name, size, digest, data)
            return
        s3.put_object(Bucket=s3.bucket, Key=f"x/{name}", Body=path.read_bytes()[:-1])

    monkeypatch.setattr(S3Store, "send", losing)
    uploader = Uploader(f"s3://{s3.bucket}/x", lambda _text: None)
    uploader.offer(checkpoint(tmp_path, 1))
    until(lambda: uploader.problem, "the size differs")
    assert "1000 bytes there, 1001 here" in uploader.problem
    assert uploader.close()["latest"] is None
    assert "x/latest" not in names(s3)


def test_a_newer_checkpoint_takes_the_place_of_one_that_waits(s3: Any, tmp_path: Path) -> None:
    blocked = threading.Event()
    uploader = Uploader(f"s3://{s3.bucket}/x", lambda _text: None)
    real = uploader._upload
    started = []

    def slow(folder: Path) -> None:
        started.append(folder.name)
        blocked.wait(DEADLINE_S)
        real(folder)

    uploader._upload = slow  # type: ignore[method-assign]
    for step in (1, 2, 3):
        uploader.offer(checkpoint(tmp_path, step))
        if step == 1:
            until(lambda: started, "the first one begins")
    assert uploader.holding == {"step-000001", "step-000003"}
    blocked.set()
    assert uploader.close()["latest"] == "step-000003"
    assert started == ["step-000001", "step-000003"]


def test_what_was_damaged_there_is_not_resumed_from(s3: Any, tmp_path: Path) -> None:
    url = f"s3://{s3.bucket}/x"
    uploader = Uploader(url, lambda _text: None)
    uploader.offer(checkpoint(tmp_path, 1))
    uploader.close()
    s3.put_object(Bucket=s3.bucket, Key="x/step-000001/model.safetensors", Body=bytes(1001))
    shutil.rmtree(tmp_path / "step-000001")
    with pytest.raises(DflashError, match="not what was uploaded"):
        fetch_latest(url, tmp_path, lambda _text: None)
    assert not (tmp_path / "step-000001").exists()
    assert fetch_latest(f"s3://{s3.bucket}/empty", tmp_path, lambda _text: None) is None


@pytest.mark.parametrize(
    ("key", "body", "says"),
    [
        ("latest", b"step-000001-good", "names 'step-000001-good', which is no checkpoint"),
        ("latest", b"\xff", "which is no checkpoint"),
        ("step-000001/manifest.json", b"[", "cannot be read as the manifest"),
        ("step-000001/manifest.json", b'{"files": []}', "files is [], not an object"),
        (
            "step-000001/manifest.json",
            b'{"files": {"..": {"size": 1, "sha256": "a"}}}',
            "file '..'",
        ),
    ],
)
def test_what_is_no_checkpoint_there_is_told(
    s3: Any, tmp_path: Path, key: str, body: bytes, says: str
) -> None:
    s3.put_object(Bucket=s3.bucket, Key="x/latest", Body=b"step-000001")
    s3.put_object(Bucket=s3.bucket, Key=f"x/{key}", Body=body)
    with pytest.raises(InputInvalid, match=re.escape(says)) as caught:
        fetch_latest(f"s3://{s3.bucket}/x", tmp_path, lambda _text: None)
    assert "earlier checkpoint" in caught.value.hint


def test_what_a_killed_start_fetched_is_not_fetched_again(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, out = f"s3://{s3.bucket}/x", tmp_path / "out"
    out.mkdir()
    made, asked, real = checkpoint(tmp_path, 1), [], S3Store.fetch
    uploader = Uploader(url, lambda _text: None)
    uploader.offer(made)
    uploader.close()
    (out / f"{PARTIAL}{made.name}").mkdir()
    shutil.copy(made / "model.safetensors", out / f"{PARTIAL}{made.name}")

    def fetch(store: S3Store, name: str, *rest: Any) -> str:
        asked.append(name)
        return real(store, name, *rest)

    monkeypatch.setattr(S3Store, "fetch", fetch)
    config = TrainConfig.from_json({"target": "t", "data": "d", "out": str(out), "upload": url})
    assert finished_or_restored(config) is None
    assert asked == [f"{made.name}/config.json"]
    assert [path.name for path in out.iterdir() if path.is_dir()] == [made.name]


def test_what_is_there_of_a_checkpoint_is_not_sent_again(s3: Any, tmp_path: Path) -> None:
    """By a run that was killed within its upload; a file that changed since then is."""
    made, url = checkpoint(tmp_path, 1), f"s3://{s3.bucket}/x"
    store = S3Store(url, upload.OPTIONS)
    store.write(f"{made.name}/model.safetensors", (made / "model.safetensors").read_bytes())
    store.write(f"{made.name}/config.json", b"[]")
    about = {"Bucket": s3.bucket, "Key": f"x/{made.name}/model.safetensors"}
    before = s3.head_object(**about)["LastModified"]
    until(lambda: time.time() > before.timestamp() + 1, "another second")
    uploader = Uploader(url, lambda _text: None)
    uploader.offer(made)
    assert uploader.close()["latest"] == made.name
    assert s3.head_object(**about)["LastModified"] == before
    assert text_of(s3, f"x/{made.name}/config.json") == "{}"


def test_a_url_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="s3://BUCKET/PREFIX"):
        Uploader(str(tmp_path), lambda _text: None)
