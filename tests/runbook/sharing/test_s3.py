"""push and pull over real HTTP: moto's S3, and a double that misbehaves as it is told."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import boto3
import pytest

from runbook.errors import Exit, RunbookError
from runbook.service import Service
from runbook.sharing.place import Moved, Place, open_place, remember, remembered
from tests.support.s3 import s3_keys, s3_server
from tests.support.s3_double import S3Double
from tests.support.shared import TASKS, take
from tests.support.workspaces import cli, command, make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["s3_keys", "s3_server"]

BUCKET = "runs"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@pytest.fixture
def endpoint(s3_server: str) -> str:
    return s3_server


@pytest.fixture(autouse=True)
def keys(s3_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    del s3_keys
    monkeypatch.setenv("AWS_REGION", "us-east-1")


@pytest.fixture
def place(endpoint: str, tmp_path: Path) -> Place:
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    return at(endpoint, f"s3://{BUCKET}/{tmp_path.name}/")


def at(endpoint: str, url: str = f"s3://{BUCKET}/one") -> Place:
    return Place(url=url, endpoint=endpoint, region="us-east-1", addressing="path")


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[Service]:
    with make(tmp_path / "ann", TASKS) as service:
        yield service


def test_there_and_back(ann: Service, place: Place, tmp_path: Path) -> None:
    first = ann.push(place)
    assert first.where == f"s3://{BUCKET}/{tmp_path.name}/state.runbook"
    assert take(place, tmp_path / "bob").change == "made"
    with Service.open(tmp_path / "bob", actor="bob") as bob:
        bob.note("bob's")
        assert bob.push(place).replaced == first.revision
        assert not bob.push(place).written
    with pytest.raises(RunbookError, match=r"newer state: revision \d+ by bob, \d+ s ago") as stale:
        ann.push(place)
    assert stale.value.exit_code is Exit.CONFLICT
    assert take(place, ann.workspace.root).change == "forwarded"
    client = boto3.client("s3", endpoint_url=place.endpoint)
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{tmp_path.name}/")["Contents"]
    assert [entry["Key"] for entry in found] == [f"{tmp_path.name}/state.runbook"]  # no probes left


def test_the_store_itself_refuses_a_stale_write(place: Place) -> None:
    store = open_place(place)
    store.write(b"first", over=None)
    with pytest.raises(Moved):
        store.write(b"again", over=None)
    looked = store.read()
    assert looked is not None
    store.write(b"second", over=looked.tag)
    with pytest.raises(Moved):
        store.write(b"third", over=looked.tag)
    found = store.read()
    assert found is not None
    assert (found.data, found.age_s is not None) == (b"second", True)


@pytest.mark.parametrize("honoured", [[], ["If-Match"], ["If-None-Match"]])
def test_a_store_that_ignores_conditions_is_found_out(
    ann: Service, tmp_path: Path, honoured: list[str]
) -> None:
    with S3Double(honours=frozenset(honoured)) as double:
        with pytest.raises(RunbookError, match="ignores the conditions"):
            ann.push(at(double.url))
        assert double.objects == {}  # neither the state nor the probe


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        (f"s3://no-such-{BUCKET}/key", Exit.USAGE, "no such bucket"),
        ("s3://", Exit.USAGE, "names no bucket"),
        ("gopher://x/y", Exit.USAGE, "not known"),
        ("/no/such/folder/file", Exit.USAGE, "no folder"),
    ],
)
def test_wrong_addresses(ann: Service, endpoint: str, url: str, code: Exit, said: str) -> None:
    with pytest.raises(RunbookError, match=said) as refused:
        ann.push(at(endpoint, url))
    assert refused.value.exit_code is code


def test_without_credentials_it_says_which(
    ann: Service, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RunbookError, match="no credentials") as refused:
        ann.push(place)
    assert refused.value.exit_code is Exit.NEEDS_AUTH


def test_a_store_that_is_not_there_is_unknown(ann: Service) -> None:
    with pytest.raises(RunbookError, match="gives no answer") as refused:
        ann.push(at("http://127.0.0.1:9"))
    assert refused.value.exit_code is Exit.UNKNOWN


def test_the_address_is_remembered_with_its_options(ann: Service, place: Place) -> None:
    ann.push(place)
    assert remembered(ann.workspace) == place
    remember(ann.workspace, at("http://elsewhere"))
    assert remembered(ann.workspace) == at("http://elsewhere")


@pytest.mark.parametrize("where", ["body", "answer"])
def test_a_push_killed_in_the_middle(ann: Service, tmp_path: Path, where: str) -> None:
    """Half a body is no object; a lost answer is found to have been our own write."""
    with S3Double() as double:
        place = at(double.url)
        ann.push(place)
        ann.note("news")
        before = dict(double.objects)
        double.hang_in = where
        words = ["push", place.url, "--endpoint-url", double.url, "--addressing", "path"]
        client = subprocess.Popen(
            command(ann.workspace.root, *words),
            env={**os.environ, **KEYS, "RUNBOOK_ACTOR": "tester"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert double.arrived.wait(60)
        client.send_signal(signal.SIGKILL)
        client.wait()
        double.hang_in = ""
        if where == "body":
            assert double.objects == before
        assert ann.push(place).written is (where == "body")
        take(place, tmp_path / "bob")
    with Service.open(tmp_path / "bob") as bob:
        assert bob.snapshot() == ann.snapshot()


def test_the_command_line_over_s3(ann: Service, place: Place, tmp_path: Path) -> None:
    import json

    options = ["--endpoint-url", place.endpoint, "--addressing", "path"]
    pushed = cli(ann.workspace.root, "push", place.url, *options, "--json", **KEYS)
    assert pushed.returncode == 0, pushed.stderr
    again = cli(ann.workspace.root, "push", **KEYS)
    assert "already" in again.stdout, again.stderr
    words = ["pull", place.url, "--dir", str(tmp_path / "bob"), *options]
    asked = cli(tmp_path, *words, "--json", **KEYS)
    assert asked.returncode == int(Exit.NEEDS_APPROVAL)
    digest = json.loads(asked.stdout)["data"]["offer"]["contents"]["digest"]
    assert cli(tmp_path, *words, "--trust", "0" * 16, **KEYS).returncode == 2
    assert cli(tmp_path, *words, "--trust", digest, **KEYS).returncode == 0
