"""`upload`, `download` and `artifact` on a host behind a real sshd, with a moto server as S3."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto.iam.access_control import IAMPolicy, PermissionResult

from remote import LocalTransport
from remote.ssh import SshTransport
from runbook import grants
from runbook.engine import handing, hosts
from runbook.errors import CannotStart
from runbook.grants import issue
from state import HostBinding
from tests.support.s3 import s3_keys, s3_server
from tests.support.sshd import running_sshd
from tests.support.workspaces import HEAD, make, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from remote import HostTarget, Transport
    from runbook.service import Service

__all__ = ["s3_keys", "s3_server"]

SECRETS = "secrets: {AWS_ACCESS_KEY_ID: {from: env}, AWS_SECRET_ACCESS_KEY: {from: env}}\ntasks:\n"
TASKS = """\
  up:
    title: Up
    phase: one
    step: upload
    secrets: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]
    with:
      venv: PREFIX
      source: ${host.work}/set
      url: s3://bucket/set
      endpoint: ENDPOINT
      region: us-east-1
      long_lived_keys: true
  refused:
    title: Refused
    phase: one
    step: upload
    secrets: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]
    with: {venv: PREFIX, source: "${host.work}/set", url: s3://bucket/no, endpoint: ENDPOINT}
  short:
    title: Short-lived keys for this prefix
    phase: one
    step: upload
    with: {venv: PREFIX, source: "${host.work}/set", url: s3://bucket/short, endpoint: ENDPOINT,
           region: us-east-1}
  follow:
    title: As it grows
    phase: one
    step: s3_sync
    with: {venv: PREFIX, source: "${host.work}/set", url: s3://bucket/grown, endpoint: ENDPOINT,
           region: us-east-1, until: a.json, settle: 0s, every: 100ms}
  model:
    title: A model, by signed URLs
    phase: one
    needs: [short]
    step: model_copy
    with: {source: "${task.short.out.url}", shm: "${host.work}/shm", disk: "${host.work}/model",
           endpoint: ENDPOINT, region: us-east-1, use_shm: false}
  down:
    title: Down
    phase: one
    needs: [up]
    step: download
    secrets: [AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY]
    with:
      venv: PREFIX
      url: ${task.up.out.url}
      out: ${host.work}/back
      endpoint: ENDPOINT
      region: us-east-1
      long_lived_keys: true
  keep:
    title: Keep
    phase: one
    needs: [down]
    step: artifact
    with:
      store: s3://bucket/kept
      endpoint: ENDPOINT
      files:
        - {path: "${task.down.out.path}", name: set}
        - {path: "${host.work}/set/a.json", name: reports/a.json}
  keep_here:
    title: Keep here
    phase: one
    needs: [down]
    step: artifact
    with: {store: "file://KEPT", files: [{path: "${host.work}/set", name: set}]}
"""


@pytest.fixture
def endpoint(s3_server: str, s3_keys: dict[str, str]) -> str:
    del s3_keys
    return s3_server


@pytest.fixture
def service(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    tasks = TASKS.replace("ENDPOINT", endpoint).replace("PREFIX", sys.prefix)
    tasks = tasks.replace("KEPT", str(tmp_path / "kept"))
    with running_sshd(tmp_path / "sshd") as sshd:

        def open_transport(target: HostTarget) -> Transport:
            if target.kind == "local":
                return LocalTransport()
            return SshTransport(target, config=sshd.client_config)

        monkeypatch.setattr(hosts, "open_transport", open_transport)
        head = HEAD.replace("tasks:\n", SECRETS)
        with make(tmp_path / "ws", tasks, head=head) as made:
            far = tmp_path / "far"
            binding = HostBinding(
                role="box", kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port,
                host_key=sshd.host_key, root=str(far / "root"), work=str(far / "work"),
            )  # fmt: skip
            made.bind("box", binding)
            yield made


def test_there_and_back_and_kept(
    service: Service, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued: dict[str, str] = {}

    def watched(*args: Any) -> grants.Issued:
        found = issue(*args)
        issued.update({f"{name} {len(issued)}": value for name, value in found.values.items()})
        return found

    monkeypatch.setattr(handing, "issue", watched)
    work = tmp_path / "far" / "work"
    (work / "set" / "deep").mkdir(parents=True)
    files = {"a.json": b"{}", "deep/b.bin": b"b" * 70_000}
    for name, content in files.items():
        (work / "set" / name).write_bytes(content)
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket="bucket")

    service.run()

    assert states(service) == {
        "up": "done", "refused": "failed", "down": "done", "keep": "done", "keep_here": "done",
        "short": "done", "follow": "done", "model": "done",
    }  # fmt: skip
    for name, content in files.items():
        assert (work / "back" / name).read_bytes() == content
        assert (tmp_path / "kept" / "set" / name).read_bytes() == content
    keys = {one["Key"] for one in client.list_objects_v2(Bucket="bucket")["Contents"]}
    kept = {"kept/set/a.json", "kept/set/deep/b.bin", "kept/reports/a.json", "kept/.objects.json"}
    names = {"a.json", "deep/b.bin", ".objects.json"}
    assert keys == kept | {f"{top}/{name}" for top in ("set", "short", "grown") for name in names}
    assert (work / "model/deep/b.bin").read_bytes() == files["deep/b.bin"]
    recorded = {
        one.uri: (one.size, one.sha256)
        for one in service.snapshot().artifacts
        if one.task == "keep"
    }
    assert recorded == {
        f"s3://bucket/kept/{name}": (len(content), hashlib.sha256(content).hexdigest())
        for name, content in {
            "set/a.json": files["a.json"], "set/deep/b.bin": files["deep/b.bin"],
            "reports/a.json": files["a.json"],
        }.items()
    }  # fmt: skip
    assert not any((tmp_path / "ws" / ".runbook" / "inbox").iterdir())
    said = service.log_path("refused", "err")
    assert said is not None
    assert "long-lived" in said.read_text()
    # What was issued is for the jobs' eyes alone: neither kept here nor left there.
    assert {name.split()[0] for name in issued} == {*grants.KEYS, grants.LISTING}
    for path in tmp_path.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not [name for name, value in issued.items() if value.encode() in content], path


def test_short_lived_keys_open_one_prefix_and_no_more() -> None:
    def allows(policy: dict[str, Any], action: str, key: str) -> bool:
        verdict = IAMPolicy(json.dumps(policy)).is_action_permitted(
            action, f"arn:aws:s3:::bucket/{key}"
        )
        return bool(verdict is PermissionResult.PERMITTED)

    reading = grants.policy_for([{"url": "s3://bucket/runs/a", "write": False}])
    writing = grants.policy_for([{"url": "s3://bucket/runs/a/", "write": True}])
    for action, by_reader, by_writer in (
        ("s3:GetObject", True, True),
        ("s3:PutObject", False, True),
        ("s3:AbortMultipartUpload", False, True),
        ("s3:PutBucketPolicy", False, False),
    ):
        assert allows(reading, action, "runs/a/deep/x") is by_reader
        assert allows(writing, action, "runs/a/deep/x") is by_writer
        assert not allows(writing, action, "runs/ab/x")
        assert not allows(writing, action, "other")
    (look, _) = reading["Statement"]
    assert look["Condition"] == {"StringLike": {"s3:prefix": ["runs/a", "runs/a/*"]}}


def test_keys_that_cannot_be_had_stop_the_start(
    s3_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [{"url": "s3://bucket/x", "write": True}]
    grant = {"kind": "keys", "places": places, "hours": 24, "role": "",
             "endpoint": "http://127.0.0.1:9", "region": "us-east-1"}  # fmt: skip
    assert grants.issue([grant], s3_keys).environment == {}, "the task's own secrets come first"
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(CannotStart, match="No short-lived keys for s3://bucket/x") as refused:
        grants.issue([grant], {})
    assert "key_role" in refused.value.hint
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(CannotStart, match="No credentials"):
        grants.issue([grant], {})


MODEL = """\
  model:
    title: A model
    phase: one
    step: model_copy
    with: {source: "s3://bucket/m", shm: "${host.work}/shm", disk: "${host.work}/model"}
"""


def test_nothing_is_recorded_as_begun_when_no_keys_are_here(
    tmp_path: Path, s3_keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in s3_keys:
        if "KEY" in name:
            monkeypatch.delenv(name)
    with make(tmp_path / "ws", MODEL) as service:
        said: list[str] = []
        service.run(listen=lambda event: said.append(str(event)))
        assert states(service) == {"model": "ready"}
        assert not service.snapshot().attempts
    assert any("no credentials" in text and "where `runbook` is started" in text for text in said)
